// The list of codecs from which the first byte of codec_fuzz.cc chooses one.
#pragma once

namespace starling {

inline constexpr const char* kCodecWords[] = {"none",
                                              "fp16",
                                              "bf16",
                                              "int8",
                                              "int8:block=8",
                                              "1bit",
                                              "1bit:block=16",
                                              "threshold:tau=0.5",
                                              "prune:keep=0.1",
                                              "lowrank:rank=1",
                                              "lowrank:rank=2",
                                              "lowrank:rank=2,form=pca",
                                              "random-k",
                                              "qsgd",
                                              "qsgd:levels=2",
                                              "terngrad:block=16",
                                              "signsgd",
                                              "dgc",
                                              "dgc+int8:block=8",
                                              "prune+int8:keep=0.3,block=8",
                                              "prune+fp16:keep=0.2",
                                              "lowrank+fp16:rank=2",
                                              "lowrank+bf16:rank=2,form=pca"};

}  // namespace starling
