// The real engine behind the interfaces that the lease loop, the service and weight sync use.
#include <utility>
#include <vector>

#include "model/parameter_view.h"
#include "rollout_server/ports.h"
#include "rollout_server/weight_swap.h"

namespace millrace {
namespace {

class RealSampleEngine : public SampleEngine {
 public:
  explicit RealSampleEngine(Engine* engine) : engine_(engine) {}
  absl::StatusOr<uint64_t> Submit(EngineRequest request) override {
    return engine_->Submit(std::move(request));
  }
  void Cancel(uint64_t request) override { engine_->Cancel(request); }
  int64_t version() const override { return engine_->version(); }
  Engine::Stats stats() const override { return engine_->stats(); }

 private:
  Engine* const engine_;
};

}  // namespace

std::unique_ptr<SampleEngine> MakeSampleEngine(Engine* engine) {
  return std::make_unique<RealSampleEngine>(engine);
}

WeightSwap::Swap MakeEngineSwap(Engine* engine) {
  return [engine](int64_t version, absl::Span<const NamedSpan> tensors, absl::Time deadline) {
    std::vector<ParameterBytes> parameters;
    parameters.reserve(tensors.size());
    for (const NamedSpan& t : tensors) parameters.push_back({t.name, t.dtype, t.shape, t.bytes});
    return engine->SwapWeights(version, parameters, deadline);
  };
}

}  // namespace millrace
