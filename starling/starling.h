// What a program that uses Starling includes.
#pragma once

#include "starling/base/error.h"
#include "starling/data/collate.h"
#include "starling/data/nest.h"
#include "starling/data/tensor_source.h"
#include "starling/data/torch_dataset.h"
#include "starling/nn/script_module.h"
#include "starling/run/join.h"
#include "starling/run/loop/distributed_optimizer.h"
#include "starling/run/run.h"
