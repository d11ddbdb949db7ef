# `make install PREFIX=` installs headers, static libraries, the program with its manual pages and completion
# scripts, and a CMake package. The package has one target, Starling::starling. The testing layers are not
# installed.
if(STARLING_TORCH_FREE)
  return()
endif()
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(layers GLOBAL PROPERTY starling_layers)
list(FILTER layers EXCLUDE REGEX "testing$")
add_library(starling_all INTERFACE)
set_target_properties(starling_all PROPERTIES EXPORT_NAME starling)
target_link_libraries(starling_all INTERFACE ${layers})
target_compile_features(starling_all INTERFACE cxx_std_20)

install(TARGETS starling_all starling_fmt ${layers} EXPORT StarlingTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY "${CMAKE_SOURCE_DIR}/starling" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.inc" PATTERN "*testing" EXCLUDE)
if(TARGET starling)
  install(TARGETS starling RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # The program itself writes its manual pages and completion scripts.
  set(share "${CMAKE_BINARY_DIR}/share")
  install(CODE "
    file(REMOVE_RECURSE \"${share}\")
    execute_process(COMMAND \"$<TARGET_FILE:starling>\" manual \"${share}\" COMMAND_ERROR_IS_FATAL ANY)")
  install(DIRECTORY "${share}/" DESTINATION ${CMAKE_INSTALL_DATAROOTDIR})
endif()

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/Starling")
install(EXPORT StarlingTargets NAMESPACE Starling:: DESTINATION "${package}")
configure_package_config_file(cmake/StarlingConfig.cmake.in "${CMAKE_BINARY_DIR}/StarlingConfig.cmake"
  INSTALL_DESTINATION "${package}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/StarlingConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/StarlingConfig.cmake" "${CMAKE_BINARY_DIR}/StarlingConfigVersion.cmake"
  cmake/torch.cmake cmake/third_party.cmake DESTINATION "${package}")

# What `make install` installs. Tests and benchmarks are not built for it.
get_property(engines GLOBAL PROPERTY starling_engines)
add_custom_target(install_parts)
add_dependencies(install_parts starling_fmt ${layers} ${engines})
if(TARGET starling)
  add_dependencies(install_parts starling)
endif()

# What tools/build_wheel installs: the default component, without the plug-ins that a cluster's own libraries
# need.
add_custom_target(wheel_parts)
add_dependencies(wheel_parts starling_fmt ${layers} starling)
if(TARGET starling_c10d_module)
  add_dependencies(wheel_parts starling_c10d_module)
endif()
