# make install PREFIX=: headers, static libraries, the program and a CMake package whose one target that programs name is
# Starling::starling. Not installed: the testing layers.
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

install(TARGETS starling_all ${layers} EXPORT StarlingTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY "${CMAKE_SOURCE_DIR}/starling" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*testing" EXCLUDE)
if(TARGET starling)
  install(TARGETS starling RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/Starling")
install(EXPORT StarlingTargets NAMESPACE Starling:: DESTINATION "${package}")
configure_package_config_file(cmake/StarlingConfig.cmake.in "${CMAKE_BINARY_DIR}/StarlingConfig.cmake"
  INSTALL_DESTINATION "${package}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/StarlingConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/StarlingConfig.cmake" "${CMAKE_BINARY_DIR}/StarlingConfigVersion.cmake"
  cmake/torch.cmake cmake/third_party.cmake DESTINATION "${package}")
