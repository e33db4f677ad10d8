#include "tests/testing/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace millrace::testing {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

std::atomic<int64_t> synchronisations{0}, to_device{0}, to_host{0}, operators{0};
// Copies made by the fallback itself are no transfers.
thread_local int inside_fallback = 0;

struct FakeAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    return {p, p, &std::free, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
FakeAllocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int = 0) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { ++synchronisations; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr data = allocator.allocate(bytes);
    if (storage.nbytes() > 0) {
      std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
FakeHooks hooks;

at::Tensor EmptyMemoryFormat(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout>, std::optional<at::Device>,
                             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor EmptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same memory as a CPU tensor.
at::Tensor OnCpu(const at::Tensor& t) {
  if (t.device().type() != kType) return t;
  char* data = static_cast<char*>(t.storage().mutable_data());
  if (data != nullptr) data += t.storage_offset() * t.itemsize();
  return at::from_blob(data, t.sizes(), t.strides(),
                       at::TensorOptions().dtype(t.dtype()).device(at::kCPU));
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool) {
  const bool from_fake = from.device().type() == kType, to_fake = to.device().type() == kType;
  if (inside_fallback == 0) {
    if (from_fake && to_fake) ++operators;
    if (from_fake && !to_fake) ++to_host;
    if (!from_fake && to_fake) ++to_device;
  }
  if (from.numel() > 0) OnCpu(to).copy_(OnCpu(from));
  return to;
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return CopyFrom(from, to, false);
}

at::Tensor AsStrided(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     std::optional<int64_t> offset) {
  return at::cpu::as_strided(t, sizes, strides, offset);
}

at::Tensor ReshapeAlias(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::cpu::as_strided(t, sizes, strides, std::nullopt);
}

at::Tensor View(const at::Tensor& t, c10::SymIntArrayRef sizes) {
  return at::native::view(t, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor& SetStorage(at::Tensor& t, at::Storage storage, int64_t offset, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides) {
  return at::cpu::set_(t, storage, offset, sizes, strides);
}

const at::Tensor& Resize(const at::Tensor& t, c10::SymIntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(t, C10_AS_INTARRAYREF_SLOW(sizes), format);
}

at::Scalar LocalScalarDense(const at::Tensor& t) {
  if (inside_fallback == 0) ++synchronisations;
  return at::_local_scalar_dense(OnCpu(t));
}

// Operators whose result's shape or value the host has to wait for.
bool Synchronises(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::nonzero",    "aten::masked_select",     "aten::equal",    "aten::_unique2",
      "aten::unique_dim", "aten::repeat_interleave", "aten::bincount", "aten::is_nonzero"};
  return names.count(name) > 0;
}

void CheckDevice(const std::string& name, const at::Tensor& t) {
  // As on a card, 0-dimensional CPU tensors pass as numbers.
  if (t.defined() && t.dim() > 0 && t.device().type() != kType) {
    TORCH_CHECK(false, "fake device: ", name, " got a tensor on ", t.device().str(), " of shape ",
                t.sizes());
  }
}

void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const size_t arguments = op.schema().arguments().size();
  for (size_t i = stack->size() - arguments; i < stack->size(); ++i) {
    const c10::IValue& v = (*stack)[i];
    if (v.isTensor()) CheckDevice(name, v.toTensor());
    if (v.isTensorList()) {
      for (const at::Tensor& t : v.toTensorVector()) CheckDevice(name, t);
    }
    if (v.isOptionalTensorList()) {
      for (const auto& t : v.toOptionalTensorVector()) {
        if (t.has_value()) CheckDevice(name, *t);
      }
    }
  }
  ++operators;
  if (Synchronises(name)) ++synchronisations;
  struct Depth {
    Depth() { ++inside_fallback; }
    ~Depth() { --inside_fallback; }
  } depth;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", EmptyMemoryFormat);
  m.impl("empty_strided", EmptyStrided);
  m.impl("_copy_from", CopyFrom);
  m.impl("_copy_from_and_resize", CopyFromAndResize);
  m.impl("as_strided", AsStrided);
  m.impl("_reshape_alias", ReshapeAlias);
  m.impl("view", View);
  m.impl("set_.source_Storage_storage_offset", SetStorage);
  m.impl("resize_", Resize);
  m.impl("_local_scalar_dense", LocalScalarDense);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>());
}

}  // namespace

c10::Device FakeDevice() {
  static const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::register_privateuse1_backend("fake");
    return true;
  }();
  (void)registered;
  return c10::Device(kType, 0);
}

void ResetFakeDeviceCounts() { synchronisations = to_device = to_host = operators = 0; }

FakeDeviceCounts ReadFakeDeviceCounts() {
  return {synchronisations, to_device, to_host, operators};
}

}  // namespace millrace::testing
