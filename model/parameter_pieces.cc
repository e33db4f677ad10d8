#include "model/parameter_pieces.h"

#include <algorithm>
#include <map>
#include <string>

namespace millrace {

bool ParameterPieces::Readable(absl::Span<const ParameterBytes> parameters) {
  return std::all_of(parameters.begin(), parameters.end(), [](const ParameterBytes& p) {
    return p.dtype == "F32" && reinterpret_cast<uintptr_t>(p.bytes.data()) % alignof(float) == 0;
  });
}

ParameterPieces::ParameterPieces(const ModelConfig& config,
                                 absl::Span<const ParameterBytes> parameters) {
  std::map<std::string, absl::Span<const float>> values;
  for (const ParameterBytes& p : parameters) {
    values[p.name] = absl::MakeConstSpan(reinterpret_cast<const float*>(p.bytes.data()),
                                         p.bytes.size() / sizeof(float));
  }
  int64_t offset = 0;
  for (const ParameterShape& shape : ParameterShapes(config)) {
    pieces_.push_back({offset, values.at(shape.name)});
    offset += static_cast<int64_t>(pieces_.back().values.size());
  }
}

std::vector<absl::Span<const float>> ParameterPieces::Of(const at::Tensor& view) const {
  std::vector<absl::Span<const float>> found;
  if (!view.defined()) return found;
  auto piece = std::lower_bound(pieces_.begin(), pieces_.end(), view.storage_offset(),
                                [](const Piece& p, int64_t offset) { return p.offset < offset; });
  for (const int64_t end = view.storage_offset() + view.numel();
       piece != pieces_.end() && piece->offset < end; ++piece) {
    found.push_back(piece->values);
  }
  return found;
}

}  // namespace millrace
