# The imported target starling::torch: libtorch on the CPU, from STARLING_TORCH or the wheel in build/venv.
# find_package(Torch) is not used: the wheel's package aborts without a CUDA toolkit. CUDA is loaded at run time.
set(STARLING_TORCH "$ENV{STARLING_TORCH}" CACHE PATH "libtorch: a folder with include/ and lib/")
if(NOT STARLING_TORCH)
  file(GLOB wheels "${CMAKE_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch")
  if(NOT wheels)
    message(FATAL_ERROR "no libtorch: run `make setup`, or give -DSTARLING_TORCH=DIR")
  endif()
  list(GET wheels 0 STARLING_TORCH_DIR)
else()
  set(STARLING_TORCH_DIR "${STARLING_TORCH}")
endif()

# fmt, header-only, from the same headers (Debian's does not compile beside them); torch-free.
add_library(starling_fmt INTERFACE)
target_include_directories(starling_fmt SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/fmt-include")
target_compile_definitions(starling_fmt INTERFACE FMT_HEADER_ONLY=1)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/fmt-include")
file(CREATE_LINK "${STARLING_TORCH_DIR}/include/fmt" "${CMAKE_BINARY_DIR}/fmt-include/fmt" SYMBOLIC)

if(NOT STARLING_TORCH_FREE)
  file(GLOB cuda_runtime "${STARLING_TORCH_DIR}/../nvidia/*/lib")
  add_library(starling_torch INTERFACE)
  target_include_directories(starling_torch SYSTEM INTERFACE
    "${STARLING_TORCH_DIR}/include" "${STARLING_TORCH_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(starling_torch INTERFACE USE_DISTRIBUTED USE_C10D)
  target_compile_options(starling_torch INTERFACE -fopenmp)
  target_link_directories(starling_torch INTERFACE "${STARLING_TORCH_DIR}/lib")
  target_link_options(starling_torch INTERFACE
    "-Wl,-rpath,${STARLING_TORCH_DIR}/lib" "-Wl,--allow-shlib-undefined")
  foreach(dir ${cuda_runtime})
    target_link_options(starling_torch INTERFACE "-Wl,-rpath,${dir}")
  endforeach()
  target_link_libraries(starling_torch INTERFACE torch_cpu c10 "${STARLING_TORCH_DIR}/lib/libgomp.so.1")
endif()
