# Tests that are not programs of a layer, such as the tests of tools/ and, for release, of the installed
# package.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# starling_python_tests(NAME… [PROPERTIES …]) adds each test method of tests/NAME_test.py to ctest, as
# "NAME_test.CLASS.METHOD". A test of many ranks reserves two processors (tools/list_tests).
function(starling_python_tests)
  cmake_parse_arguments(arg "" "" "PROPERTIES" ${ARGN})
  list(TRANSFORM arg_UNPARSED_ARGUMENTS REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/tests/\\1_test.py" OUTPUT_VARIABLE files)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files} "${CMAKE_SOURCE_DIR}/tools/list_tests")
  execute_process(COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tools/list_tests" ${files}
    OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" lines "${lines}")
  foreach(line ${lines})
    string(REPLACE " " ";" words "${line}")
    list(GET words 0 file)
    list(GET words 1 test)
    list(GET words 2 processors)
    set(entry "${file}.${test}")
    add_test(NAME "${entry}" COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tests/${file}.py" -v "${test}")
    set_tests_properties("${entry}" PROPERTIES TIMEOUT 600 PROCESSORS ${processors} SKIP_RETURN_CODE 77
      ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR};STARLING_CXX=${CMAKE_CXX_COMPILER}" ${arg_PROPERTIES})
  endforeach()
endfunction()

# The tests of tools/ do not depend on the build, so that one preset is enough.
if(NOT STARLING_SANITIZE)
  starling_python_tests(tools docs_tools docs_sessions_tool second_chances weights_header PROPERTIES TIMEOUT 120)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT STARLING_SANITIZE)
  add_test(NAME install_test COMMAND "${CMAKE_SOURCE_DIR}/tests/install_test.sh" "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
  set_tests_properties(install_test PROPERTIES LABELS processes TIMEOUT 600 PROCESSORS 2)
endif()

# starling_preloaded(NAME SOURCE) makes a library for LD_PRELOAD, tests/libNAME.so of the build.
function(starling_preloaded name source)
  add_library(${name} MODULE ${source})
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests" PREFIX lib)
endfunction()

# Starts programs with libtorch many times after they were loaded once. A sanitizer's runtime would have to be
# loaded first.
if(NOT STARLING_TORCH_FREE AND NOT STARLING_SANITIZE)
  starling_preloaded(warm_start tests/warm_start/library.c)
  add_executable(warm_run tests/warm_start/run.cc)
  set_target_properties(warm_run PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
endif()

# Tests of the launcher as a process. Its ranks are a small program, launcher_child.
add_executable(launcher_child tests/launcher_child.cc)
target_link_libraries(launcher_child PRIVATE starling_launch starling_spec)
set_target_properties(launcher_child PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
starling_test(launcher_test SOURCES tests/launcher_test.cc LIBS starling_base)
add_dependencies(launcher_test launcher_child)
starling_python_tests(launch_host launch_hosts PROPERTIES LABELS processes TIMEOUT 180)
# The tests share sshd's folder /run/sshd.
starling_python_tests(launch_ssh PROPERTIES LABELS processes TIMEOUT 180 RESOURCE_LOCK sshd)

# Tests of groups over UCX, whose ranks are processes. Sanitizers do not know how UCX uses memory, so they are
# left out.
if(TARGET starling_testing AND NOT STARLING_SANITIZE)
  starling_test(ucx_test SOURCES tests/ucx_test.cc starling/comm/group_processes_test.cc
    LIBS starling_codec starling_testing)
endif()

# Tests of groups over MPI, under mpiexec. The program mpi_ranks itself does not link MPI.
if(NOT STARLING_TORCH_FREE AND NOT STARLING_SANITIZE)
  add_executable(mpi_ranks tests/mpi_ranks.cc)
  target_link_libraries(mpi_ranks PRIVATE starling_testing starling_codec starling_comm starling_launch)
  set_target_properties(mpi_ranks PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  starling_python_tests(mpi PROPERTIES LABELS processes)
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
    # A library for stalled_disk_test, and users' programs for own_program_test, fit_test, loop_test,
    # autoencoder_test, mcmc_test, nest_test, blocks_test and device_test.
    starling_preloaded(stalled_disk tests/stalled_disk.c)
    foreach(program own_program fit_program loop_program grid_program mcmc_program nest_program blocks_program device_program)
      add_executable(${program} tests/${program}.cc)
      target_link_libraries(${program} PRIVATE starling_run)
      starling_torch_program(${program})
      set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
    endforeach()
    target_link_libraries(device_program PRIVATE starling_torch_testing)
    foreach(program fit_program nest_program blocks_program) # the others end as users' programs do
      target_link_libraries(${program} PRIVATE starling_skip_destructors)
    endforeach()
    list(APPEND names warm_start own_program fit loop nest blocks device ports extend embed stalled_disk
      stalled_data paused_reader train run_end exchanges compare verify resume share run_folder faults failure full_disk
      bad_input served factorize lbfgs mcmc lasso topics autoencoder interrupted place queue hosts launch_train comm why ckpt compress)
    starling_python_tests(slurm PROPERTIES LABELS processes RESOURCE_LOCK slurm)
  endif()
  starling_python_tests(${names} PROPERTIES LABELS processes)
  # Runs the console sessions of the tutorial and the how-to pages as a reader types them. It takes minutes,
  # so only `make check-deep` runs it.
  if(NOT STARLING_SANITIZE)
    add_test(NAME docs_sessions_test COMMAND "${Python3_EXECUTABLE}" -B "${CMAKE_SOURCE_DIR}/tools/run_docs_sessions")
    set_tests_properties(docs_sessions_test PROPERTIES TIMEOUT 1800 ENVIRONMENT "STARLING_BUILD=${CMAKE_BINARY_DIR}" SKIP_RETURN_CODE 77 RUN_SERIAL ON LABELS deep)
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

# The test adds a codec by one file and one row, as spec/codecs.inc promises. Its program compiles the three
# files that read the table again.
if(NOT STARLING_SANITIZE)
  starling_test(added_codec_test
    SOURCES tests/added_codec/added_codec_test.cc tests/added_codec/fixed16.cc starling/spec/codec_table.cc
            starling/codec/codec_spec.cc starling/codec/make_codec.cc
    LIBS starling_codec starling_testing)
  target_compile_definitions(added_codec_test PRIVATE STARLING_ADDED_CODECS="${CMAKE_SOURCE_DIR}/tests/added_codec/row.inc")
endif()
