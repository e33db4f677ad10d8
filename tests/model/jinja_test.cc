#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "model/jinja/template.h"
#include "tests/testing/status_matchers.h"

namespace millrace::jinja {
namespace {

using ::millrace::testing::IsOk;
using ::millrace::testing::StatusIs;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr auto kBad = absl::StatusCode::kInvalidArgument;
constexpr auto kNot = absl::StatusCode::kUnimplemented;
constexpr auto kFull = absl::StatusCode::kResourceExhausted;

Variables VariablesOf(const Json& context) {
  Variables variables;
  for (const auto& [name, value] : context.items()) {
    variables.emplace_back(name, Value::FromJson(value, 1));
  }
  return variables;
}

absl::StatusOr<Text> Render(absl::string_view source, const Json& context = Json::object(),
                            const RenderOptions& options = RenderOptions()) {
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(VariablesOf(context), options);
}

TEST(Jinja, RendersAndRefusesWhatJinjaDoes) {
  const Json golden =
      Json::parse(ReadFile(std::string(MILLRACE_GOLDEN_DIR) + "/jinja/cases.json").value());
  ASSERT_GT(golden["cases"].size(), 400u);
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["template"].dump());
    const auto text = Render(c["template"].get<std::string>(), golden["context"]);
    if (c.contains("error")) {
      EXPECT_FALSE(text.ok()) << text->bytes();
    } else {
      EXPECT_THAT(text, IsOk());
      if (text.ok()) {
        EXPECT_EQ(text->bytes(), c["output"]);
      }
    }
  }
}

TEST(Jinja, NamesWhatItDoesNotSupportAndTheLine) {
  struct Case {
    const char* source;
    absl::StatusCode code;
    const char* named;
  };
  const Case cases[] = {
      {"a\n{% include 'x' %}", kNot, "line 2: the tag \"include\""},
      {"{% block x %}{% endblock %}", kNot, "\"block\""},
      {"\n\n{{ x | urlize }}", kNot, "line 3: the filter \"urlize\""},
      {"{{ x | map('urlize') }}", kNot, "\"urlize\""},
      {"{{ x is frozen }}", kNot, "line 1: the test \"frozen\""},
      {"\n{{ x.format(1) }}", kNot, "line 2: the method \"format\" of str"},
      {"{{ l.append(1) }}", kNot, "\"append\""},
      {"{{ f(*l) }}", kNot, "* or **"},
      {"{{ lipsum() }}", kNot, "\"lipsum\""},
      {"{{ x % 1 }}", kNot, "formatting with %"},
      {"{% for x in l %}{{ loop.secret }}{% endfor %}", kNot, "loop.secret"},
      {"a\nb\n{{ raise_exception('only ' ~ x) }}", kBad, "line 3: the template raises: only abc"},
      {"{{ nothing.x }}", kBad, "line 1: 'nothing' is undefined"},
      {"{{ d.k.x }}", kBad, "line 1: 'dict object' has no attribute 'k'"},
      {"{% if x %}\n", kBad, "endif"},
      {"{{ 'abc", kBad, "line 1: a string is not closed"},
      {"{{ \"\\ud800\" }}", kBad, "escape"},
  };
  const Json context = {{"x", "abc"}, {"l", {1, 2}}, {"d", Json::object()}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.source);
    EXPECT_THAT(Render(c.source, context).status(), StatusIs(c.code, HasSubstr(c.named)));
  }
}

// Each of these would take all memory, for ever or the stack.
TEST(Jinja, AHostileTemplateRunsIntoALimit) {
  const std::string deep(100'000, '('), lists(100'000, '['), minus(100'000, '-');
  const std::string sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x "
      "%}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
      "endfor %}",
      "{% set ns = namespace(x=1) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for a in range(9999) %}{% set ns.x = {'a': ns.x} %}{% "
      "endfor %}",
      "{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}{{ ns.x }}",
      "{{ 'a' * 99999999999 }}",
      "{{ ('a' * 9999999) | replace('a', 'b' * 9999999) }}",
      "{{ ('a' * 9999999) | replace('', 'b' * 99) }}",
      "{{ (['a' * 999999] * 2) }}{{ ('a' * 999999) | list | join('b' * 999999) }}",
      "{{ 'a'.ljust(99999999999) }}",
      "{{ 'a' | indent(99999999999, true) }}",
      "{{ '1' | tojson(indent=99999999999) }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
      "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
      "{{ 9 ** 9 ** 9 }}",
      "{{ range(999999999) }}",
      "{% set x = namespace() %}{% set x.x = x %}{% set x.y = [x] %}{{ x.y }}{{ x.x.x.x }}"
      "{{ 'a' * 99999999999 }}",
      "{{ strftime_now('%1000000c') }}",
      "{{ " + deep + "1",
      "{{ " + lists + "1",
      "{{ " + minus + "1 }}",
      "{{ not" + absl::StrCat(std::string(400'000, ' ')) + " not 1" + std::string(1000, '|') + "}}",
  };
  for (const std::string& source : sources) {
    SCOPED_TRACE(source.substr(0, 100));
    EXPECT_FALSE(Render(source).ok());
  }
  std::string chain = "{{ 1", blocks, nots = "{{";
  for (int i = 0; i < 50'000; ++i) {
    chain += " + 1";
    blocks += "{% if true %}";
    nots += " not";
  }
  EXPECT_THAT(Render(chain + " }}").status(), StatusIs(kFull, HasSubstr("nested deeper")));
  EXPECT_THAT(Render(nots + " 1 }}").status(), StatusIs(kFull, HasSubstr("nested deeper")));
  EXPECT_THAT(Render(blocks).status(), StatusIs(kFull, HasSubstr("nested deeper")));
}

TEST(Jinja, LimitsAreTheCallers) {
  RenderOptions options;
  options.limits.most_text_bytes = 10;
  EXPECT_THAT(Render("{{ 'a' * 10 }}", {}, options), IsOk());
  EXPECT_THAT(Render("{{ [1111, 2222, 3333] }}", {}, options).status(),
              StatusIs(kFull, HasSubstr("10")));
  EXPECT_THAT(Render("{{ 'a' * 11 }}", {}, options).status(), StatusIs(kFull, HasSubstr("10")));
  EXPECT_THAT(Render("abcdefghijk", {}, options).status(), StatusIs(kFull, HasSubstr("10")));
  options.limits.total_bytes = 100;
  EXPECT_THAT(Render("{{ ('a' * 101) | length }}", {}, options).status(),
              StatusIs(kFull, HasSubstr("100 bytes")));
  options = RenderOptions();
  options.limits.steps = 12;
  EXPECT_THAT(Render("{% for x in range(9) %}{% endfor %}", {}, options), IsOk());
  EXPECT_THAT(Render("{% for x in range(9) %}{{ x }}{% endfor %}", {}, options).status(),
              StatusIs(kFull, HasSubstr("12 steps")));
}

TEST(Jinja, EveryByteKnowsWhereItComesFrom) {
  const Json context = {{"u", "<s>hi"}, {"l", {"A", "b"}}};
  // Upper-case what comes from the context, lower-case what the template wrote.
  const auto shown = [&](absl::string_view source) {
    const auto text = Render(source, context);
    EXPECT_THAT(text, IsOk());
    std::string out;
    for (size_t i = 0; i < text->size(); ++i) {
      const char c = text->bytes()[i];
      out += text->TagAt(i).origin == 1 ? static_cast<char>(std::toupper(c)) : c;
    }
    return out;
  };
  EXPECT_EQ(shown("<s>{{ u }}<e>"), "<s><S>HI<e>");
  EXPECT_EQ(shown("{{ '<s>' ~ u + 'x' }}"), "<s><S>HIx");
  EXPECT_EQ(shown("{{ u[1:4] }}{{ u[-1] }}{{ u[::-1] }}"), "S>HIIH>S<");
  EXPECT_EQ(shown("{{ ('a' ~ u ~ 'b') | trim | replace('h', 'xy') }}"), "a<S>xyIb");
  EXPECT_EQ(shown("{{ u.split('>')[0] ~ '>' }}{{ l | join('-') }}"), "<S>A-B");
  EXPECT_EQ(shown("{{ {'k': u} | tojson }}{{ l | tojson }}"), "{\"k\": \"<S>HI\"}[\"A\", \"B\"]");
  EXPECT_EQ(shown("{% set x %}a{{ u }}{% endset %}{{ x | upper | lower }}"), "a<S>HI");
  EXPECT_EQ(shown("{% macro m(x) %}m{{ x }}{% endmacro %}{{ m(u) }}{{ [u, 'c'] }}"),
            "m<S>HI['<S>HI', 'c']");
  EXPECT_EQ(shown("{% for c in u %}{{ c }}.{% endfor %}"), "<.S.>.H.I.");
  EXPECT_EQ(shown("{{ u if true else 'no' }}{{ u | default('x') }}{{ (u, 1) | first }}"),
            "<S>HI<S>HI<S>HI");
}

TEST(Jinja, MarksWhatIsGenerated) {
  const auto text =
      Render("a{% generation %}b{{ 1 }}{% endgeneration %}c{% generation %}d{% endgeneration %}");
  ASSERT_THAT(text, IsOk());
  std::string marked;
  for (size_t i = 0; i < text->size(); ++i) marked += text->TagAt(i).generated ? '1' : '0';
  EXPECT_EQ(text->bytes(), "ab1cd");
  EXPECT_EQ(marked, "01101");
}

TEST(Jinja, TellsTheTimeItIsGiven) {
  RenderOptions options;
  options.now = absl::FromCivil(absl::CivilSecond(2024, 7, 26, 13, 5, 0), absl::LocalTimeZone());
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y %H:%M') }}", {}, options)->bytes(),
            "26 Jul 2024 13:05");
}

}  // namespace
}  // namespace millrace::jinja
