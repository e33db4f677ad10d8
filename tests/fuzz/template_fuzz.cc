// Any bytes as a chat template: it is refused, or renders a conversation within its limits into
// well-formed text.
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "model/byte_level.h"
#include "model/jinja/template.h"
#include "tests/fuzz/fuzz_target.h"

namespace millrace::testing {
namespace {

const jinja::Variables& Conversation() {
  static const auto* const variables = [] {
    const auto json = nlohmann::ordered_json::parse(
        R"([{"role":"system","content":"s"},{"role":"user","content":"\u00e9 <think>x</think>"},)"
        R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"k":[1,2.5,true]}}}]}])");
    return new jinja::Variables{{"messages", jinja::Value::FromJson(json, 1)},
                                {"tools", jinja::Value::MakeNone()},
                                {"add_generation_prompt", jinja::Value::Bool(true)},
                                {"s", jinja::Value::Literal("text\nof lines")},
                                {"n", jinja::Value::Int(3)}};
  }();
  return *variables;
}

int FuzzTemplate(const uint8_t* data, size_t size) {
  const auto parsed =
      jinja::Template::Parse(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  jinja::RenderOptions options;
  options.limits.steps = 20'000;
  options.limits.total_bytes = 1 << 22;
  options.limits.most_text_bytes = 1 << 20;
  const auto text = (*parsed)->Render(Conversation(), options);
  if (!text.ok()) return 0;
  if (text->size() > options.limits.most_text_bytes) std::abort();
  if (ReplaceInvalidUtf8(text->bytes()) != text->bytes()) std::abort();
  if (!text->runs().empty() && text->runs().back().end != text->size()) std::abort();
  return 0;
}

}  // namespace

FuzzTarget FuzzTargetOf() {
  return {
      &FuzzTemplate,
      {"{%- for m in messages -%}\n{{- '<|' ~ m.role ~ '|>' ~ (m['content'] | trim) -}}\n"
       "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson(indent=2) }}{% endif %}\n"
       "{%- endfor %}{% if add_generation_prompt %}<|a|>{% endif %}",
       "{% set ns = namespace(x=0, l=[]) %}{% for a in range(n) %}{% set ns.x = ns.x + a %}"
       "{% set ns.l = ns.l + [a] %}{% endfor %}{{ ns.x }}{{ ns.l[::-1] }}",
       "{% macro m(a, b=2) %}[{{ a }}{{ b }}{{ caller() }}]{% endmacro %}{% call m(1) %}x{% "
       "endcall %}",
       "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') "
       "}}"
       "{{ s.split('\\n')[0].strip('t') }}{{ s[1:-1] | replace('e', 'ee') | upper }}",
       "{% for k, v in messages[2].tool_calls[0].function.items() recursive %}{{ loop.index }}"
       "{{ k }}={{ v if v is string else v | tojson }}{% else %}none{% endfor %}",
       "{% generation %}{{ s | indent(2) }}{% endgeneration %}{% filter title %}abc{% endfilter %}"
       "{% with z = 1 %}{{ z is odd and not false or none }}{% endwith %}{# c #}"},
      {"{%",
       "%}",
       "{{",
       "}}",
       "{#",
       "#}",
       "-%}",
       "{%-",
       " is ",
       " in ",
       " not ",
       " and ",
       " if ",
       " else ",
       "{% for x in ",
       "{% endfor %}",
       "{% if ",
       "{% endif %}",
       "{% set ",
       "{% endset %}",
       "{% macro ",
       "{% endmacro %}",
       " | ",
       ".items()",
       ".split(",
       "[::-1]",
       " ~ ",
       " * 99999 ",
       " ** ",
       " // ",
       "namespace(",
       "range(",
       "loop.",
       "loop(",
       "| list",
       "| sort",
       "| groupby(",
       "| tojson",
       "9223372036854775807",
       "-9223372036854775807",
       "'\\u00e9'",
       "messages",
       "s",
       "n"}};
}

}  // namespace millrace::testing
