#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/local_model.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

constexpr absl::Duration kTokenWait = absl::Seconds(120);  // for the next token of an answer

// Tokens of one answer, from the engine's thread to the terminal's. Thread-safe.
class TokenStream {
 public:
  void Set(absl::Span<const int32_t> tokens, bool done) {
    absl::MutexLock lock(&mu_);
    tokens_.assign(tokens.begin(), tokens.end());
    done_ = done;
  }
  // Waits for more than `seen` tokens or the end.
  absl::Status Next(size_t seen, std::vector<int32_t>* tokens, bool* done) {
    absl::MutexLock lock(&mu_);
    const auto news = [this, seen]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return done_ || tokens_.size() > seen;
    };
    Clock* clock = Clock::Real();
    if (!clock->AwaitWithDeadline(&mu_, absl::Condition(&news), clock->Now() + kTokenWait)) {
      return absl::DeadlineExceededError(absl::StrCat("waited ", absl::FormatDuration(kTokenWait),
                                                      " for token ", seen + 1, " of the answer"));
    }
    *tokens = tokens_;
    *done = done_;
    return absl::OkStatus();
  }

 private:
  absl::Mutex mu_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

class Chat {
 public:
  Chat(const ChatOptions& options, LocalModel model)
      : options_(options), model_(std::move(model)) {}

  // Prints the answer to `line` as it comes.
  absl::Status Answer(const std::string& line) {
    std::vector<int32_t> prompt;
    if (model_.chat) {
      messages_.push_back({"user", line});
      MR_ASSIGN_OR_RETURN(prompt, EncodeChat(*model_.tokenizer, messages_));
    } else {
      prompt = model_.tokenizer->Encode(line);
    }
    const int64_t room = model_.longest - static_cast<int64_t>(prompt.size());
    if (room <= 0) {
      messages_.clear();
      return absl::ResourceExhaustedError(
          absl::StrCat("the conversation of ", prompt.size(), " tokens is longer than the ",
                       model_.longest, " there is room for; it starts anew"));
    }
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.indices = {0};
    request.seed = options_.seed + turn_++;
    request.sampling.temperature = static_cast<float>(options_.temperature);
    request.max_new_tokens = static_cast<int32_t>(std::min(room, options_.max_new_tokens));
    request.stop_ids = model_.stop_ids;
    MR_ASSIGN_OR_RETURN(const std::string answer, Generate(std::move(request)));
    if (model_.chat) messages_.push_back({"assistant", answer});
    return absl::OkStatus();
  }

  void StartAnew() { messages_.clear(); }
  bool chat() const { return model_.chat; }
  const std::string& dir() const { return model_.dir; }

 private:
  absl::StatusOr<std::string> Generate(EngineRequest request) {
    auto stream = std::make_shared<TokenStream>();
    request.stop = [stream](absl::Span<const int32_t> tokens) {
      stream->Set(tokens, false);
      return false;
    };
    request.on_sample = [stream](GeneratedSample sample) { stream->Set(sample.token_ids, true); };
    MR_ASSIGN_OR_RETURN(const uint64_t id, model_.engine->Submit(std::move(request)));
    std::vector<int32_t> tokens;
    StreamDecoder decoder(model_.tokenizer.get());
    size_t decoded = 0;
    bool done = false;
    while (!done) {
      if (const absl::Status status = stream->Next(tokens.size(), &tokens, &done); !status.ok()) {
        model_.engine->Cancel(id);
        return status;
      }
      std::string text;
      while (decoded < tokens.size()) text += decoder.Push(tokens[decoded++]);
      if (done) text += decoder.Flush();
      if (text.empty()) continue;
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    std::printf("\n");
    std::fflush(stdout);
    return model_.tokenizer->Decode(tokens);
  }

  const ChatOptions options_;
  const LocalModel model_;
  std::vector<ChatMessage> messages_;
  uint64_t turn_ = 0;
};

}  // namespace

int ChatCommand(const ChatOptions& options) {
  LocalModelOptions model_options;
  model_options.device = options.device;
  model_options.threads = options.threads;
  absl::StatusOr<LocalModel> model = LoadLocalModel(options.dir, model_options);
  if (!model.ok()) {
    return PrintFailure(model.status());
  }
  Chat chat(options, *std::move(model));
  if (!options.once.empty()) {
    const absl::Status status = chat.Answer(options.once);
    if (!status.ok()) PrintFailure(status);
    return status.ok() ? 0 : 1;
  }
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) {
    std::printf("%s. %s Ctrl-D ends.\n", chat.dir().c_str(),
                chat.chat() ? "Type a message; /new starts a new conversation."
                            : "A model without chat format: what you type is the prompt as it is.");
  }
  std::string line;
  while (true) {
    if (terminal) std::cout << "> " << std::flush;
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/new") {
      chat.StartAnew();
      continue;
    }
    if (const absl::Status status = chat.Answer(line); !status.ok()) PrintFailure(status);
  }
  if (terminal) std::printf("\n");
  return 0;
}

}  // namespace millrace
