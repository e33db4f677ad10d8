// Comparison of the run's shared secret.
#ifndef MILLRACE_WEIGHT_SYNC_SECRET_H_
#define MILLRACE_WEIGHT_SYNC_SECRET_H_

#include <string>

namespace millrace {

// Takes the same time wherever the first difference is, so that it cannot be found byte by byte.
inline bool SameSecret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_SECRET_H_
