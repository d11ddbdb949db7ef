# starling_engine(NAME LOADED_BY TARGET…) sets up a MODULE library of plugins/, which programs load at run
# time (base/shared_object.h). It sets the folder where the programs find the library. Each TARGET that exists
# in this build depends on the library, because a program must not load a library of an older build.
function(starling_engine name)
  cmake_parse_arguments(arg "" "" "LOADED_BY" ${ARGN})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/starling" INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${name} LIBRARY DESTINATION lib/starling COMPONENT engines)  # not in the wheel
  set_property(GLOBAL APPEND PROPERTY starling_engines ${name})
  foreach(user ${arg_LOADED_BY})
    if(TARGET ${user})
      add_dependencies(${user} ${name})
    endif()
  endforeach()
endfunction()
