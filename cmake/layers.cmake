# The layers of Starling and the arrows between them (docs/design/layers.md). A layer may include the layers
# behind DEPS and the layers that those may include. tools/check_layers checks every #include against these
# lines.
include(third_party)

# The files that read the tables of exchanges and codecs are compiled alone, because tests replace their
# objects (checks.cmake).
set_source_files_properties(starling/spec/strategy_table.cc starling/parallel/exchange_makers.cc starling/spec/codec_table.cc
  starling/codec/codec_spec.cc starling/codec/make_codec.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# The files of layers with TORCH that include no header of torch, directly or through a header of ours.
# A precompiled header of torch would cost such a file seconds. tools/check_layers checks the lists.
starling_torch_free(c10d cuda_library)
starling_torch_free(torch_testing test_memory)
starling_torch_free(data divide_samples formats/archive formats/byte_file formats/cifar formats/idx
  formats/image_codec formats/image_folder formats/image_store formats/resize formats/text_store
  formats/unpacker generated/digit_strokes generated/digits generated/grammar generated/make_data read_place read_stall served/served_client
  served/served_images served/served_key served/served_leases served/served_protocol served/served_server
  served/served_store served/served_text)
starling_torch_free(nn layers/bias_gelu_kernels layers/causal_softmax layers/image_windows
  safetensors/safetensors_index)
starling_torch_free(grid halo_plan rank_grid)
starling_torch_free(parallel meetings all_reduce/host_reducer all_reduce/network_reducer all_reduce/weight_sum
  replica/flat_layout replica/replica_hash)
starling_torch_free(train checkpoint_folder checkpoint_lineage checkpoint_scalars checkpoint_writer
  rank_gather step_times store_gather)
starling_torch_free(run checked_config folder/earlier_files folder/resume_command folder/leaders_lock
  folder/gather_timeline
  folder/tuning_file freed_memory message/command_page message/diagnosis message/dry_run message/help
  message/print_error ranks/broadcast_text ranks/job_store ranks/mesh_groups
  stop_signal thread_waiting)
starling_torch_free(commands bench_comm bench_scaling ckpt_commands comm_commands compare compared_run
  compress_command cpu_topology doctor doctor_machine exchange_measurement factorize_command generated_options interrupted_text
  launch_command
  lasso_command lbfgs_command mcmc_command own_program progress_lines read_samples place_methods place_stop queue_command result_folder topics_command topics_export tour why_command)

starling_layer(base      LIBS Threads::Threads)
starling_layer(weights   SERIAL)
starling_layer(compress  SERIAL DEPS base weights LIBS PkgConfig::xxhash)
starling_layer(spec      COLD SERIAL DEPS base)
starling_layer(net       DEPS base LIBS OpenSSL::SSL OpenSSL::Crypto)
# The loop of reductions is compiled for each instruction set, with equal IEEE operations in all of them.
set_source_files_properties(starling/comm/reduce/reduce_kernels.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
starling_layer(comm      DEPS net)
starling_layer(testing   DEPS comm)
if(TARGET comm_test)
  target_link_libraries(comm_test PRIVATE starling_testing)
endif()
starling_layer(telemetry COLD DEPS base LIBS PkgConfig::sqlite3)
starling_layer(plan      COLD SERIAL DEPS spec)
set_source_files_properties(starling/report/bar_chart.cc starling/report/line_chart.cc starling/report/timeline_picture.cc
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # the charts use equal names for their margins
starling_layer(place     SERIAL DEPS plan)
starling_layer(report    COLD SERIAL DEPS telemetry plan)
starling_layer(launch    COLD DEPS net telemetry)
target_compile_definitions(starling_launch PRIVATE STARLING_VERSION="${PROJECT_VERSION}")
starling_layer(queue     COLD SERIAL DEPS launch spec LIBS PkgConfig::sqlite3)
starling_layer(c10d      TORCH COLD DEPS comm)
starling_layer(torch_testing TORCH DEPS testing)
starling_layer(data      TORCH DEPS net spec LIBS PkgConfig::libarchive PkgConfig::turbojpeg PkgConfig::spng ZLIB::ZLIB)
set_source_files_properties(starling/nn/layers/bias_gelu_kernels.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math")
set_source_files_properties(starling/nn/layers/causal_softmax.cc PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2>")
# The loop over elements in layers/keyed_dropout.cc is a hash, which -O2 makes no faster (docs/benchmarks.md).
starling_layer(nn        TORCH COLD DEPS c10d spec compress)
if(NOT STARLING_SANITIZE)
  set(kernel_speed -O3)  # with a sanitizer, -O3 would take minutes to compile
endif()
# These kernels are vectorized, with equal IEEE operations in the vector body and the scalar tail.
set_source_files_properties(starling/optim/update_rule.cc starling/optim/layer_rule.cc
  starling/optim/sum_of_squares.cc starling/optim/finite.cc starling/optim/hogwild_update.cc
  PROPERTIES SKIP_PRECOMPILE_HEADERS ON
  COMPILE_OPTIONS "${kernel_speed};-ffp-contract=off;-fno-math-errno;-fno-trapping-math")
starling_layer(optim     DEPS spec)
# These loops over many values are vectorized for each instruction set, with equal IEEE operations in all of
# them.
foreach(name none fp16 bf16 int8 symmetric_int8 one_bit threshold prune low_rank_kernels error_feedback
    compressed_all_reduce message_sum)
  set_source_files_properties(starling/codec/${name}.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON
    COMPILE_OPTIONS "${kernel_speed};-ffp-contract=off;-fno-math-errno;-fno-trapping-math")
endforeach()
starling_layer(codec     DEPS comm spec)
starling_layer(job       SERIAL DEPS comm)
starling_layer(factor    DEPS server comm job)
starling_layer(server    DEPS codec optim comm job)
starling_layer(lbfgs     DEPS comm spec job)
starling_layer(mcmc      DEPS job lbfgs comm)
# The sums over samples are vectorized for each instruction set, with equal IEEE operations in all of them.
set_source_files_properties(starling/lasso/column_kernels.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
  COMPILE_OPTIONS "${kernel_speed};-ffp-contract=off")
starling_layer(lasso     SERIAL DEPS job lbfgs comm)
# The loop over the topics of a document is vectorized for each instruction set. It counts whole numbers.
set_source_files_properties(starling/topics/documents.cc starling/topics/word_sampler.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
  COMPILE_OPTIONS "${kernel_speed}")
starling_layer(topics    SERIAL DEPS server comm job)
starling_layer(grid      TORCH COLD DEPS nn job)
starling_layer(parallel  TORCH COLD DEPS nn optim codec server plan c10d comm data LIBS PkgConfig::xxhash)
starling_layer(train     TORCH COLD DEPS parallel nn optim data telemetry)
starling_layer(run       TORCH COLD DEPS train launch report grid mcmc)
starling_layer(commands  TORCH COLD DEPS run factor grid lbfgs mcmc lasso topics place queue)

# The arrows between the folders inside a layer. tools/check_layers also checks every #include against these
# lines. A layer's own folder may include its folders, and they may include it.
starling_rooms(comm
  choice->collective choice->network
  collective->choice collective->host collective->network collective->reduce
  host->reduce network->host mpi->host mpi->recorder mpi->reduce)
starling_rooms(net
  emulation->stream memory->store memory->stream store->security store->stream stream->security ucx->security ucx->stream)
starling_rooms(data generated->formats served->formats)
starling_rooms(nn tensor_parallel->layers zoo->layers zoo->tensor_parallel)
starling_rooms(parallel all_reduce->replica pipeline->all_reduce pipeline->replica zero->replica)
starling_rooms(run choice->ranks folder->choice folder->ranks loop->choice loop->folder loop->message loop->ranks)
