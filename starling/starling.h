// What a program that uses Starling includes.
#pragma once

#include "starling/base/error.h"
#include "starling/data/tensor_source.h"
#include "starling/run/run.h"
