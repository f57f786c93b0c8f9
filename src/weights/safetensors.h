// The header of a safetensors file, read and checked against the file before anything is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace cadre {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes of the file
};

// The tensors of a file, in the order of their bytes. Throws Error, naming `what` and the tensor, unless: the header is
// one JSON object of at most 100 million bytes inside the file; names are unique; types are known; shapes are not
// negative and their bytes are those between the offsets; the tensors cover the rest of the file without overlap or
// hole. Format: the safetensors project's README.
std::vector<SafetensorsEntry> read_safetensors_header(std::span<const std::byte> file, std::string_view what);

}  // namespace cadre
