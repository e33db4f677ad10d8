// How the flat bytes of a version are cut into buckets. Pure.
//
// Buckets are cut so that they never share a tensor with a neighbour unless the tensor alone is
// larger than a bucket: so each unit (one bucket of whole tensors, or the buckets of one large
// tensor) can be copied and digested by one thread in one pass.
#ifndef MILLRACE_WEIGHT_SYNC_BUCKET_PLAN_H_
#define MILLRACE_WEIGHT_SYNC_BUCKET_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weight_sync/manifest.h"

namespace millrace {

// Buckets of at most `bucket_bytes` that cover the tensors (laid out ascending); digests are 0.
std::vector<BucketMeta> PlanBuckets(const std::vector<TensorMeta>& tensors, uint64_t bucket_bytes);

// Tensors [first_tensor, last_tensor) are exactly what buckets [first_bucket, last_bucket) hold.
struct BucketUnit {
  size_t first_bucket = 0, last_bucket = 0;
  size_t first_tensor = 0, last_tensor = 0;
};
// The smallest such units of a valid manifest, in order; works for any cut of the buckets.
std::vector<BucketUnit> PlanUnits(const VersionManifest& manifest);

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_BUCKET_PLAN_H_
