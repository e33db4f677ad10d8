// Range checks and contradictions between fields.
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/config_schema.h"
#include "common/net_util.h"

namespace millrace {
namespace {

// A whole group travels in one message of 64 MiB, and a token takes 8 bytes of it and more
// (docs/buffer.md, docs/buffer_store.md).
constexpr int64_t kMaxGroupTokens = (63 << 20) / 8;

class Checker {
 public:
  explicit Checker(const RunConfig& config) : config_(config), mutable_(config) {}

  std::vector<ConfigIssue> Run() {
    for (const ConfigField& field : ConfigSchema()) CheckField(field);
    CheckStrings();
    CheckRandomModel();
    CheckSampling();
    CheckTraining();
    return std::move(issues_);
  }

 private:
  template <typename... Args>
  void Add(const std::string& field, const Args&... args) {
    issues_.push_back({field, 0, absl::StrCat(args...)});
  }

  void CheckField(const ConfigField& field) {
    bool ok = true;
    if (const auto* text = std::get_if<std::string& (*)(RunConfig&)>(&field.ref)) {
      const std::string& value = (*text)(mutable_);
      ok = field.choices.empty();
      for (const std::string& choice : field.choices) ok = ok || value == choice;
    } else if (const auto* integer = std::get_if<int64_t& (*)(RunConfig&)>(&field.ref)) {
      const double value = static_cast<double>((*integer)(mutable_));
      ok = value >= field.low && value <= field.high;
    } else if (const auto* number = std::get_if<double& (*)(RunConfig&)>(&field.ref)) {
      const double value = (*number)(mutable_);
      ok = value >= field.low && value <= field.high && !(field.above_low && value == field.low);
    }
    if (!ok) {
      Add(field.full_name(), ConfigValueText(field, config_),
          " is not valid; valid: ", DescribeValid(field));
    }
  }

  void CheckStrings() {
    const std::string& name = config_.run.name;
    bool name_ok = !name.empty() && name.front() != '.';
    for (const char c : name) {
      name_ok = name_ok && (absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_');
    }
    if (!name_ok) {
      Add("run.name", "\"", name,
          "\" is not valid; valid: letters, digits, dot, dash, underscore, not starting with a "
          "dot");
    }
    CheckDevice("model.device", config_.model.device);
    for (const std::string& device : config_.rollout.devices) {
      CheckDevice("rollout.devices", device);
    }
    CheckAddress("buffer.address", config_.buffer.address);
    CheckAddress("weight_sync.address", config_.weight_sync.address);
  }

  void CheckDevice(const std::string& field, const std::string& text) {
    absl::string_view device = text;
    int index = 0;
    const bool numbered = absl::ConsumePrefix(&device, "cuda:");
    if (!(device == "cpu" || device == "cuda" || numbered) || (numbered && device == "cpu") ||
        (numbered && (!absl::SimpleAtoi(device, &index) || index < 0))) {
      Add(field, "\"", text, "\" is not valid; valid: cpu, cuda, cuda:N");
    }
  }

  void CheckAddress(const std::string& field, const std::string& address) {
    if (address.empty()) return;
    const auto parsed = ParseHostPort(address);
    if (!parsed.ok()) {
      Add(field, parsed.status().message());
    } else if (parsed->port == 0) {
      // Another port after every restart, which nobody would be told of.
      Add(field, "\"", address, "\" names no port; valid: a port from 1 to 65535, or empty for a ",
          "free one");
    }
  }

  void CheckRandomModel() {
    const RunConfig::Model& m = config_.model;
    if (!m.path.empty()) return;  // the shape comes from the folder's config.json
    if (m.kv_heads > 0 && m.heads % m.kv_heads != 0) {
      Add("model.kv_heads", m.kv_heads, " does not divide model.heads ", m.heads,
          "; valid: a divisor of it");
    }
    if (m.head_dim % 2 != 0) {
      Add("model.head_dim", m.head_dim, " is odd; valid: an even number (rotary embedding)");
    }
    const int64_t longest = config_.rollout.max_prompt_tokens + config_.rollout.max_new_tokens;
    if (longest > m.max_position) {
      Add("model.max_position", m.max_position, " is less than rollout.max_prompt_tokens ",
          config_.rollout.max_prompt_tokens, " + rollout.max_new_tokens ",
          config_.rollout.max_new_tokens, "; valid: ", longest, " or more");
    }
  }

  void CheckSampling() {
    const RunConfig::Rollout& r = config_.rollout;
    const int64_t longest = r.max_prompt_tokens + r.max_new_tokens;
    if (r.kv_tokens < longest) {
      Add("rollout.kv_tokens", r.kv_tokens, " cannot hold one sample of max_prompt_tokens ",
          r.max_prompt_tokens, " + max_new_tokens ", r.max_new_tokens, "; valid: ", longest,
          " or more");
    }
    // In double: either may be out of its own range by any number.
    if (static_cast<double>(r.group_size) * static_cast<double>(longest) > kMaxGroupTokens) {
      Add("rollout.group_size", r.group_size, " samples of max_prompt_tokens ", r.max_prompt_tokens,
          " + max_new_tokens ", r.max_new_tokens, " are more than the ", kMaxGroupTokens,
          " tokens that a group can have at most; valid: fewer, or shorter ones");
    }
    if (config_.buffer.version_lead > config_.buffer.max_staleness) {
      Add("buffer.version_lead", config_.buffer.version_lead, " is more than buffer.max_staleness ",
          config_.buffer.max_staleness,
          ": groups would be sampled to be dropped; valid: at most max_staleness");
    }
    if (2 * config_.weight_sync.heartbeat_seconds > config_.weight_sync.member_timeout_seconds) {
      Add("weight_sync.heartbeat_seconds", config_.weight_sync.heartbeat_seconds,
          " is more than half of weight_sync.member_timeout_seconds ",
          config_.weight_sync.member_timeout_seconds, "; members would be removed between two");
    }
    if (config_.supervisor.backoff_seconds > config_.supervisor.max_backoff_seconds) {
      Add("supervisor.backoff_seconds", config_.supervisor.backoff_seconds,
          " is more than supervisor.max_backoff_seconds ", config_.supervisor.max_backoff_seconds);
    }
  }

  void CheckTraining() {
    if (config_.sft.stop_low > config_.sft.stop_high) {
      Add("sft.stop_low", config_.sft.stop_low, " is more than sft.stop_high ",
          config_.sft.stop_high, "; valid: at most stop_high");
    }
    if (config_.run.steps == 0 && config_.sft.steps == 0) {
      Add("run.steps",
          "0 steps, and sft.steps is 0 too: there is nothing to train; valid: 1 or "
          "more, or sft.steps above 0");
    }
    if (config_.run.steps > 0 && config_.learner.warmup_steps > config_.run.steps) {
      Add("learner.warmup_steps", config_.learner.warmup_steps, " is more than run.steps ",
          config_.run.steps, ": the learning rate would never get to learner.lr");
    }
  }

  const RunConfig& config_;
  RunConfig mutable_;  // refs of the schema are to mutable fields
  std::vector<ConfigIssue> issues_;
};

}  // namespace

std::vector<ConfigIssue> CheckConfig(const RunConfig& config) { return Checker(config).Run(); }

}  // namespace millrace
