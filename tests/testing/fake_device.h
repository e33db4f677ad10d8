// A LibTorch device for tests ("fake", PrivateUse1) whose memory is host memory but which behaves
// like a card: an operator that is given a tensor of another device throws and says which, and
// synchronisations and transfers are counted. So code that would fail or stall on a GPU fails here.
// Operators run on the CPU, slowly. Counters are atomic; the rest is as thread-safe as LibTorch.
#ifndef MILLRACE_TESTS_TESTING_FAKE_DEVICE_H_
#define MILLRACE_TESTS_TESTING_FAKE_DEVICE_H_

#include <c10/core/Device.h>

#include <cstdint>

namespace millrace::testing {

struct FakeDeviceCounts {
  int64_t synchronisations = 0;  // item(), nonzero and their like: the host waits for the device
  int64_t to_device = 0;         // host-to-device copies
  int64_t to_host = 0;           // device-to-host copies
  int64_t operators = 0;         // kernels a real device would launch
};

// The device; registered with LibTorch on the first call.
c10::Device FakeDevice();
void ResetFakeDeviceCounts();
FakeDeviceCounts ReadFakeDeviceCounts();  // since the last reset

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_TESTING_FAKE_DEVICE_H_
