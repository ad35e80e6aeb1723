// The verbs of the runner, between the C interface and the engine. Each returns an empty string, or what is wrong.
#pragma once
#include "engine.h"

namespace hone {

Dims dims_of(const HoneShape& shape);
std::string publish(Engine& engine, const HoneTensor* tensors, int count);
std::string reserve(Engine& engine, int64_t pages);
std::string run(Engine& engine, const HonePass& pass);
std::string adapt(Engine& engine, int slot, const HoneTensor* tensors, int count);
std::string copy(Engine& engine, const int32_t* source, const int32_t* target, int count);

}  // namespace hone
