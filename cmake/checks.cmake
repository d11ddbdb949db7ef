# Tests that are not programs of a layer: the house rules' own tests, and (release only) the installed package.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME tools_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/tools_test.py" -v)
set_tests_properties(tools_test PROPERTIES TIMEOUT 120 SKIP_REGULAR_EXPRESSION "\\.\\.\\. skipped")
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT STARLING_SANITIZE)
  add_test(NAME install_test COMMAND "${CMAKE_SOURCE_DIR}/tests/install_test.sh" "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
  set_tests_properties(install_test PROPERTIES TIMEOUT 300 RUN_SERIAL ON)
endif()
