# The libraries that Starling's layers link, in a wheel (tools/build_wheel installs this file as
# third_party.cmake). They are the wheel's own copies, so that no package of the distribution is needed. Their
# headers are not: Starling's do not include them.
find_package(Threads REQUIRED)
get_filename_component(starling_copies "${CMAKE_CURRENT_LIST_DIR}/../../../../starling_training.libs" ABSOLUTE)
foreach(name archive sqlite3 turbojpeg spng xxhash ssl crypto)
  file(GLOB file "${starling_copies}/lib${name}[-.]*")
  if(NOT file)
    message(FATAL_ERROR "Starling's wheel is incomplete: no lib${name} in ${starling_copies}")
  endif()
  add_library(StarlingWheel::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(StarlingWheel::${name} PROPERTIES IMPORTED_LOCATION "${file}")
endforeach()
# A wheel uses the system's zlib, which each system with Python has.
add_library(StarlingWheel::z INTERFACE IMPORTED GLOBAL)
set_target_properties(StarlingWheel::z PROPERTIES INTERFACE_LINK_LIBRARIES "-l:libz.so.1")
