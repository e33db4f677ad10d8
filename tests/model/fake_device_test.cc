#include "tests/testing/fake_device.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::testing {
namespace {

using ::testing::HasSubstr;

TEST(FakeDeviceTest, GivesTheCpusResultsAndGradients) {
  const auto run = [](at::Device device) {
    at::Generator g = at::detail::createCPUGenerator(2);
    at::Tensor w = at::empty({8, 8}).normal_(0, 1, g).to(device).set_requires_grad(true);
    at::Tensor x = at::empty({4, 8}).normal_(0, 1, g).to(device);
    at::Tensor y =
        at::log_softmax(at::matmul(x, w).view({2, 2, 8}).transpose(0, 1).reshape({4, 8}), -1);
    y.narrow(1, 0, 3).mean().backward();
    EXPECT_EQ(w.grad().device(), device);
    return w.grad().to(at::kCPU);
  };
  EXPECT_EQ((run(FakeDevice()) - run(at::kCPU)).abs().max().item<float>(), 0);
}

TEST(FakeDeviceTest, TensorOfAnotherDeviceThrowsAndIsNamed) {
  at::Tensor fake = at::ones({4, 4}).to(FakeDevice()), cpu = at::ones({4, 4});
  for (const std::function<void()>& mix :
       std::vector<std::function<void()>>{[&] { at::mm(fake, cpu); }, [&] { at::add(fake, cpu); },
                                          [&] { fake.index_select(0, at::zeros({1}, at::kLong)); },
                                          [&] {
                                            at::cat({fake, cpu});
                                          }}) {
    try {
      mix();
      ADD_FAILURE() << "did not throw";
    } catch (const c10::Error& e) {
      EXPECT_THAT(e.what_without_backtrace(), HasSubstr("cpu"));
    }
  }
}

TEST(FakeDeviceTest, CountsSynchronisationsTransfersAndOperators) {
  at::Tensor x = at::ones({4, 4}).to(FakeDevice());
  ResetFakeDeviceCounts();
  at::Tensor y = x + x;
  EXPECT_EQ(ReadFakeDeviceCounts().synchronisations, 0);
  EXPECT_EQ(ReadFakeDeviceCounts().to_device + ReadFakeDeviceCounts().to_host, 0);
  EXPECT_GE(ReadFakeDeviceCounts().operators, 1);
  y.sum().item<float>();
  EXPECT_EQ(ReadFakeDeviceCounts().synchronisations, 1);
  at::nonzero(y);
  EXPECT_EQ(ReadFakeDeviceCounts().synchronisations, 2);
  y.to(at::kCPU).to(FakeDevice());
  EXPECT_EQ(ReadFakeDeviceCounts().to_host, 1);
  EXPECT_EQ(ReadFakeDeviceCounts().to_device, 1);
  ResetFakeDeviceCounts();
  EXPECT_EQ(ReadFakeDeviceCounts().operators, 0);
}

}  // namespace
}  // namespace millrace::testing
