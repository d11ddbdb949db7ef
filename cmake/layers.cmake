# The layers of Starling and the arrows between them (docs/design/layers.md). tools/check_layers holds every #include
# to these lines; a layer may include the layers on its right-hand side and what those may include.
include(third_party)

starling_layer(base      LIBS Threads::Threads)
starling_layer(spec      DEPS base)
starling_layer(telemetry DEPS base LIBS PkgConfig::sqlite3)
starling_layer(net       DEPS base telemetry LIBS OpenSSL::Crypto)
starling_layer(comm      DEPS net spec telemetry LIBS PkgConfig::hwloc)
starling_layer(testing   DEPS comm)
if(TARGET comm_test)
  target_link_libraries(comm_test PRIVATE starling_testing)
endif()
starling_layer(plan      DEPS spec)
starling_layer(report    DEPS telemetry plan)
set_target_properties(starling_report PROPERTIES UNITY_BUILD OFF)  # each chart has its own margins, by the same names
starling_layer(launch    DEPS net telemetry)
target_compile_definitions(starling_launch PRIVATE STARLING_VERSION="${PROJECT_VERSION}")
starling_layer(c10d      TORCH DEPS comm)
starling_layer(torch_testing TORCH DEPS testing)
# These files of data do not see torch and compile much faster without its precompiled header.
foreach(name archive byte_file cifar digit_strokes digits grammar idx image_codec image_folder image_folder_test image_store
        make_data resize served_client served_images served_key served_leases served_protocol served_server stored_images_test
        text_store)
  set_source_files_properties(starling/data/${name}.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endforeach()
starling_layer(data      TORCH DEPS net spec telemetry LIBS PkgConfig::libarchive PkgConfig::turbojpeg PkgConfig::spng ZLIB::ZLIB)
set_source_files_properties(starling/nn/bias_gelu_kernels.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math")
starling_layer(nn        TORCH DEPS c10d spec)
starling_layer(optim     DEPS spec)
if(NOT STARLING_SANITIZE)
  set(kernel_speed -O3)  # under a sanitizer it costs minutes of compilation
endif()
# Kernels: vectorised, and with the same IEEE operations in the vector body and the scalar tail.
set_source_files_properties(starling/optim/update_rule.cc starling/optim/sum_of_squares.cc PROPERTIES
  COMPILE_OPTIONS "${kernel_speed};-ffp-contract=off;-fno-math-errno;-fno-trapping-math")
# Loops over many values: vectorised for each vector unit, with the same IEEE operations in all of them.
foreach(name none fp16 bf16 int8 one_bit threshold prune low_rank_kernels error_feedback compressed_all_reduce)
  set_source_files_properties(starling/codec/${name}.cc PROPERTIES
    COMPILE_OPTIONS "${kernel_speed};-ffp-contract=off;-fno-math-errno;-fno-trapping-math")
endforeach()
starling_layer(codec     DEPS comm optim)
starling_layer(server    DEPS codec optim comm)
starling_layer(factor    DEPS server comm)
starling_layer(parallel  TORCH DEPS nn optim codec server plan c10d comm data LIBS PkgConfig::xxhash)
starling_layer(train     TORCH DEPS parallel nn optim data c10d plan)
starling_layer(run       TORCH DEPS train launch factor report)
