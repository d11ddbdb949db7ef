# Precompiled headers for each kind of file, and a function for programs that use them.
#
#   starling_pch            files without torch
#   starling_pch_torch      files that include torch
#   starling_pch_test       tests without torch
#   starling_pch_torch_test tests that include torch
#
# GCC instantiates the templates of the headers' inline functions again in every file. A header that is not
# needed therefore costs time in every file. torch/torch.h is expensive, so starling_pch_torch names parts of
# it.
set(pch_plain <algorithm> <array> <atomic> <cerrno> <charconv> <chrono> <cmath> <condition_variable> <cstddef> <cstdint> <cstdlib>
  <cstring> <deque> <exception> <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set>
  <span> <sstream> <string> <string_view> <system_error> <thread> <tuple> <utility> <variant> <vector> <fmt/format.h> <fmt/ranges.h>)
set(pch_torch <ATen/ATen.h> <torch/types.h> <torch/nn/module.h> <torch/utils.h>)
set(pch_test <gtest/gtest.h> <gmock/gmock.h>)
set(pch_torch_test <torch/nn/modules/linear.h> <torch/nn/modules/conv.h> <torch/nn/modules/batchnorm.h>
  <torch/nn/modules/container/sequential.h>)

function(starling_precompiled name libs)
  add_library(${name} STATIC EXCLUDE_FROM_ALL "${CMAKE_SOURCE_DIR}/cmake/pch.cc")
  target_link_libraries(${name} PRIVATE starling_fmt ${libs})
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

starling_precompiled(starling_pch "" ${pch_plain})
starling_precompiled(starling_pch_test GTest::gmock ${pch_plain} ${pch_test})
if(NOT STARLING_TORCH_FREE)
  starling_precompiled(starling_pch_torch starling_torch ${pch_plain} ${pch_torch})
  starling_precompiled(starling_pch_torch_test "starling_torch;GTest::gmock" ${pch_plain} ${pch_torch} ${pch_torch_test} ${pch_test})
endif()

# starling_program_headers(PROGRAM PCH) compiles a program with a precompiled header and the header's flags.
function(starling_program_headers name pch)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # -fPIE would not match the precompiled header
  target_compile_options(${name} PRIVATE -fPIC)
  target_precompile_headers(${name} REUSE_FROM ${pch})
endfunction()
