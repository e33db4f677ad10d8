#include "weight_sync/bucket_plan.h"

namespace millrace {

std::vector<BucketMeta> PlanBuckets(const std::vector<TensorMeta>& tensors, uint64_t bucket_bytes) {
  std::vector<BucketMeta> buckets;
  uint64_t begin = 0;  // of the open bucket
  uint64_t end = 0;    // of the tensors in it
  auto close_at = [&](uint64_t at) {
    if (at > begin) buckets.push_back({begin, at - begin, 0});
    begin = at;
  };
  for (const TensorMeta& t : tensors) {
    if (t.offset + t.size - begin > bucket_bytes && end > begin) close_at(t.offset);
    end = t.offset + t.size;
    if (end - begin <= bucket_bytes) continue;
    while (end - begin > bucket_bytes) close_at(begin + bucket_bytes);
    // The rest of a large tensor takes no other in, so that the next unit starts with its own.
    close_at(end);
  }
  close_at(end);
  return buckets;
}

std::vector<BucketUnit> PlanUnits(const VersionManifest& manifest) {
  std::vector<BucketUnit> units;
  BucketUnit unit;
  for (size_t b = 0; b < manifest.buckets.size(); ++b) {
    uint64_t end = manifest.buckets[b].offset + manifest.buckets[b].size;
    unit.last_bucket = b + 1;
    while (unit.last_tensor < manifest.tensors.size() &&
           manifest.tensors[unit.last_tensor].offset + manifest.tensors[unit.last_tensor].size <=
               end) {
      ++unit.last_tensor;
    }
    bool cut = unit.last_tensor < manifest.tensors.size() &&
               manifest.tensors[unit.last_tensor].offset < end;
    if (cut) continue;
    units.push_back(unit);
    unit = {b + 1, b + 1, unit.last_tensor, unit.last_tensor};
  }
  return units;
}

}  // namespace millrace
