# Tests that are not programs of a layer, such as the tests of tools/ and, for release, of the installed
# package.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME tools_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/tools_test.py" -v)
set_tests_properties(tools_test PROPERTIES TIMEOUT 120 SKIP_REGULAR_EXPRESSION "\\.\\.\\. skipped")
foreach(name docs_tools docs_sessions_tool rerun_failed)
  add_test(NAME ${name}_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/${name}_test.py" -v)
  set_tests_properties(${name}_test PROPERTIES TIMEOUT 120 SKIP_REGULAR_EXPRESSION "\\.\\.\\. skipped")
endforeach()
add_test(NAME weights_header_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/weights_header_test.py" -v)
set_tests_properties(weights_header_test PROPERTIES TIMEOUT 120 ENVIRONMENT "STARLING_CXX=${CMAKE_CXX_COMPILER}")
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT STARLING_SANITIZE)
  add_test(NAME install_test COMMAND "${CMAKE_SOURCE_DIR}/tests/install_test.sh" "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
  set_tests_properties(install_test PROPERTIES TIMEOUT 600 RUN_SERIAL ON)
endif()

# Tests of the launcher as a process. Its ranks are a small program, launcher_child.
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

# Tests of groups over UCX, whose ranks are processes. Sanitizers do not know how UCX uses memory, so they are
# left out.
if(TARGET starling_testing AND NOT STARLING_SANITIZE)
  starling_test(ucx_test SOURCES tests/ucx_test.cc starling/comm/group_processes_test.cc LIBS starling_testing)
endif()

# Tests of groups over MPI, under mpiexec. The program mpi_ranks itself does not link MPI.
if(NOT STARLING_TORCH_FREE AND NOT STARLING_SANITIZE)
  add_executable(mpi_ranks tests/mpi_ranks.cc)
  target_link_libraries(mpi_ranks PRIVATE starling_testing starling_comm starling_launch)
  set_target_properties(mpi_ranks PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME mpi_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/mpi_test.py")
  set_tests_properties(mpi_test PROPERTIES TIMEOUT 600 ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR}"
    SKIP_RETURN_CODE 77)
  if(TARGET starling_mpi)
    add_dependencies(mpi_ranks starling_mpi)
    find_package(MPI QUIET COMPONENTS C)  # the targets of plugins/mpi are not known here
    add_executable(mpi_join tests/mpi_join.cc)
    target_compile_definitions(mpi_join PRIVATE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
    target_link_libraries(mpi_join PRIVATE starling_run MPI::MPI_C)
    starling_torch_program(mpi_join)
    set_target_properties(mpi_join PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
    add_dependencies(mpi_join starling_mpi)
  endif()
endif()

# Tests of the program as a user runs it, with real processes, signals and files. Under sanitizers only the
# smoke test runs.
if(TARGET starling)
  set(names smoke)
  if(NOT STARLING_SANITIZE)
    # A library for stalled_disk_test, and users' programs for own_program_test, fit_test, loop_test, nest_test, blocks_test and device_test.
    add_library(stalled_disk MODULE tests/stalled_disk.c)
    target_link_libraries(stalled_disk PRIVATE ${CMAKE_DL_LIBS})
    set_target_properties(stalled_disk PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests" PREFIX lib)
    foreach(program own_program fit_program loop_program nest_program blocks_program device_program)
      add_executable(${program} tests/${program}.cc)
      target_link_libraries(${program} PRIVATE starling_run)
      starling_torch_program(${program})
      set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
    endforeach()
    target_link_libraries(device_program PRIVATE starling_torch_testing)
    list(APPEND names own_program fit loop nest blocks device ports extend embed stalled_disk train run_end exchanges compare verify resume share run_folder faults failure full_disk bad_input served factorize hosts launch_train comm slurm why ckpt)
  endif()
  foreach(name ${names})
    add_test(NAME ${name}_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/${name}_test.py")
    set_tests_properties(${name}_test PROPERTIES TIMEOUT 1800 ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR}"
      SKIP_RETURN_CODE 77)
  endforeach()
  # Runs the console sessions of the tutorial and the how-to pages as a reader types them.
  if(NOT STARLING_SANITIZE)
    add_test(NAME docs_sessions_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tools/run_docs_sessions")
    set_tests_properties(docs_sessions_test PROPERTIES TIMEOUT 1800 ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR}" SKIP_RETURN_CODE 77 RUN_SERIAL ON)
  endif()
endif()

# The test adds an exchange by one file and one row, as spec/exchanges.inc promises. Its program compiles the
# two files that read the table again. Their objects replace those in the libraries.
if(TARGET starling_torch_testing AND NOT STARLING_SANITIZE)
  starling_test(added_exchange_test TORCH
    SOURCES tests/added_exchange/added_exchange_test.cc tests/added_exchange/leader.cc starling/spec/strategy_table.cc
            starling/parallel/exchange_makers.cc
    LIBS starling_run starling_torch_testing)
  target_compile_definitions(added_exchange_test PRIVATE STARLING_ADDED_EXCHANGES="${CMAKE_SOURCE_DIR}/tests/added_exchange/row.inc")
endif()
