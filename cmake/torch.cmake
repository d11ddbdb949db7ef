# Makes the imported targets starling_torch (libtorch on the CPU) and starling_fmt_headers. The installed
# CMake package also includes this file.
#
# libtorch comes from STARLING_TORCH, else from the folder that an installed package recorded, else from the
# wheel in build/venv. find_package(Torch) is not used, because the wheel's package aborts without a CUDA
# toolkit. CUDA is loaded at run time.
set(STARLING_TORCH "$ENV{STARLING_TORCH}" CACHE PATH "Folder of a libtorch, with include/ and lib/")
set(STARLING_TORCH_DIR "${STARLING_TORCH}")
if(NOT STARLING_TORCH_DIR)
  set(STARLING_TORCH_DIR "${STARLING_TORCH_RECORDED}")
endif()
if(NOT STARLING_TORCH_DIR)
  file(GLOB STARLING_TORCH_DIR "${CMAKE_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch")
endif()
if(NOT EXISTS "${STARLING_TORCH_DIR}/include/ATen/ATen.h")
  message(FATAL_ERROR "'${STARLING_TORCH_DIR}' has no libtorch: run `make setup`, or set -DSTARLING_TORCH=DIR (DIR/include, DIR/lib)")
endif()

# The headers of fmt in the wheel, which do not need torch. Debian's fmt does not compile beside them.
# cmake/fmt.cc is their library.
add_library(starling_fmt_headers INTERFACE IMPORTED GLOBAL)
target_include_directories(starling_fmt_headers SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/fmt-include")
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/fmt-include")
file(CREATE_LINK "${STARLING_TORCH_DIR}/include/fmt" "${CMAKE_BINARY_DIR}/fmt-include/fmt" SYMBOLIC)

if(NOT STARLING_TORCH_FREE)
  file(GLOB cuda_runtime "${STARLING_TORCH_DIR}/../nvidia/*/lib")
  add_library(starling_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(starling_torch SYSTEM INTERFACE
    "${STARLING_TORCH_DIR}/include" "${STARLING_TORCH_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(starling_torch INTERFACE USE_DISTRIBUTED USE_C10D)
  # STARLING_PLAIN marks a target whose files do not include torch.
  target_compile_options(starling_torch INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:STARLING_PLAIN>>>:-fopenmp>)
  target_link_directories(starling_torch INTERFACE "${STARLING_TORCH_DIR}/lib")
  target_link_options(starling_torch INTERFACE
    "-Wl,-rpath,${STARLING_TORCH_DIR}/lib" "-Wl,--allow-shlib-undefined")
  foreach(dir ${cuda_runtime})
    target_link_options(starling_torch INTERFACE "-Wl,-rpath,${dir}")
  endforeach()
  target_link_libraries(starling_torch INTERFACE torch_cpu c10 "${STARLING_TORCH_DIR}/lib/libgomp.so.1")
endif()
