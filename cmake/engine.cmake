# starling_engine(NAME LOADED_BY TARGET…): a MODULE library of plugins/ that is loaded at run time (base/shared_object.h): where it is
# found, and that each of those targets which this build has gets the one of the same build; beside an older one it would misread what
# that tells.
function(starling_engine name)
  cmake_parse_arguments(arg "" "" "LOADED_BY" ${ARGN})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/starling" INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${name} LIBRARY DESTINATION lib/starling)
  foreach(user ${arg_LOADED_BY})
    if(TARGET ${user})
      add_dependencies(${user} ${name})
    endif()
  endforeach()
endfunction()
