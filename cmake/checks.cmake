# Tests that are not programs of a layer: the house rules' own tests, and (release only) the installed package.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME tools_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/tools_test.py" -v)
set_tests_properties(tools_test PROPERTIES TIMEOUT 120 SKIP_REGULAR_EXPRESSION "\\.\\.\\. skipped")
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT STARLING_SANITIZE)
  add_test(NAME install_test COMMAND "${CMAKE_SOURCE_DIR}/tests/install_test.sh" "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
  set_tests_properties(install_test PROPERTIES TIMEOUT 600 RUN_SERIAL ON)
endif()

# The launcher as a process, with a small program of its own as the ranks.
add_executable(launcher_child tests/launcher_child.cc)
target_link_libraries(launcher_child PRIVATE starling_launch starling_spec)
set_target_properties(launcher_child PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
starling_test(launcher_test SOURCES tests/launcher_test.cc LIBS starling_base)
add_dependencies(launcher_test launcher_child)
foreach(name launch_host launch_hosts launch_ssh)
  add_test(NAME ${name}_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/${name}_test.py")
  set_tests_properties(${name}_test PROPERTIES TIMEOUT 180 ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR}"
    SKIP_RETURN_CODE 77)
endforeach()

# Groups over UCX, their ranks as processes. Not under sanitizers, which know nothing of what UCX does with memory.
if(TARGET starling_testing AND NOT STARLING_SANITIZE)
  starling_test(ucx_test SOURCES tests/ucx_test.cc starling/comm/group_processes_test.cc LIBS starling_testing)
endif()

# Groups over MPI, under mpiexec; mpi_ranks sees no MPI itself.
if(NOT STARLING_TORCH_FREE AND NOT STARLING_SANITIZE)
  add_executable(mpi_ranks tests/mpi_ranks.cc)
  target_link_libraries(mpi_ranks PRIVATE starling_comm starling_launch)
  set_target_properties(mpi_ranks PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME mpi_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/mpi_test.py")
  set_tests_properties(mpi_test PROPERTIES TIMEOUT 600 ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR}"
    SKIP_RETURN_CODE 77)
  if(TARGET starling_mpi)
    add_dependencies(mpi_ranks starling_mpi)
  endif()
endif()

# The program as a user runs it: real processes, real signals, real files. Under sanitizers the smoke test alone.
if(TARGET starling)
  set(names smoke)
  if(NOT STARLING_SANITIZE)
    list(APPEND names train exchanges compare verify resume faults failure bad_input served factorize hosts launch_train comm slurm)
  endif()
  foreach(name ${names})
    add_test(NAME ${name}_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/${name}_test.py")
    set_tests_properties(${name}_test PROPERTIES TIMEOUT 900 ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR}"
      SKIP_RETURN_CODE 77)
  endforeach()
endif()
