// Filters over sequences: choosing, mapping, sorting, grouping.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/filters.h"
#include "model/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

using Result = absl::StatusOr<Value>;

const Value* Named(const Arguments& args, absl::string_view name) {
  for (const auto& [known, value] : args.named) {
    if (known == name) return &value;
  }
  return nullptr;
}

// The arguments behind the first `n`.
Arguments Behind(const Arguments& args, size_t n) {
  Arguments out;
  out.named = args.named;
  out.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(n), args.positional.end());
  return out;
}

Result Map(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(std::vector<Value> items, call.in->Items(call.input));
  const Value* attribute = Named(call.args, "attribute");
  if (attribute != nullptr) {
    const Value* otherwise = Named(call.args, "default");
    for (Value& item : items) {
      MR_ASSIGN_OR_RETURN(item, AttributePath(call.in, item, attribute, otherwise));
    }
  } else {
    if (call.args.positional.empty() || call.args.positional[0].text() == nullptr) {
      return absl::InvalidArgumentError("the filter \"map\" needs a filter's name or attribute=");
    }
    const std::string& filter = call.args.positional[0].text()->bytes();
    const Arguments rest = Behind(call.args, 1);
    for (Value& item : items) {
      MR_RETURN_IF_ERROR(call.in->Step());
      MR_ASSIGN_OR_RETURN(item, ApplyFilter(call.in, filter, item, rest));
    }
  }
  List list;
  list.items = std::move(items);
  return Value::Of(std::move(list));
}

// select, reject, selectattr, rejectattr.
Result Select(FilterCall& call) {
  const bool by_attribute = call.name == "selectattr" || call.name == "rejectattr";
  const bool keep = call.name == "select" || call.name == "selectattr";
  const std::vector<Value>& given = call.args.positional;
  if (by_attribute && given.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the filter \"", call.name, "\" needs an attribute"));
  }
  const size_t at = by_attribute ? 1 : 0;
  std::string test;
  if (given.size() > at) {
    if (given[at].text() == nullptr || !IsTest(given[at].text()->bytes())) {
      MR_ASSIGN_OR_RETURN(const Text shown, call.in->ToText(given[at]));
      return absl::UnimplementedError(
          absl::StrCat("the test \"", shown.bytes(), "\" is not supported"));
    }
    test = given[at].text()->bytes();
  }
  const Arguments rest = given.size() > at ? Behind(call.args, at + 1) : Arguments();
  MR_ASSIGN_OR_RETURN(std::vector<Value> items, call.in->Items(call.input));
  List list;
  for (Value& item : items) {
    MR_RETURN_IF_ERROR(call.in->Step());
    MR_ASSIGN_OR_RETURN(const Value value,
                        AttributePath(call.in, item, by_attribute ? &given[0] : nullptr));
    bool holds = value.truth();
    if (!test.empty()) {
      MR_ASSIGN_OR_RETURN(holds, ApplyTest(call.in, test, value, rest));
    }
    if (holds == keep) list.items.push_back(std::move(item));
  }
  return Value::Of(std::move(list));
}

struct Keyed {
  Value key, item;
};

// Sorts by key; text without regard to case unless asked for.
absl::Status SortKeyed(Interpreter* in, bool any_case, std::vector<Keyed>* items) {
  if (any_case) {
    for (Keyed& k : *items) {
      if (k.key.text() != nullptr) k.key = Value::Of(Lower(*k.key.text()));
    }
  }
  absl::Status status;
  std::stable_sort(items->begin(), items->end(), [&](const Keyed& a, const Keyed& b) {
    if (!status.ok()) return false;
    const absl::StatusOr<bool> less = in->CompareBy("<", a.key, b.key);
    if (!less.ok()) status = less.status();
    return less.ok() && *less;
  });
  return status;
}

bool IsTrue(const Value* value) { return value != nullptr && value->truth(); }

absl::StatusOr<std::vector<Keyed>> KeyedItems(FilterCall& call, const Value* attribute) {
  MR_ASSIGN_OR_RETURN(std::vector<Value> items, call.in->Items(call.input));
  std::vector<Keyed> keyed;
  for (Value& item : items) {
    MR_RETURN_IF_ERROR(call.in->Step());
    MR_ASSIGN_OR_RETURN(Value key, AttributePath(call.in, item, attribute));
    keyed.push_back({std::move(key), std::move(item)});
  }
  return keyed;
}

Value ListOf(std::vector<Keyed> keyed) {
  List list;
  for (Keyed& k : keyed) list.items.push_back(std::move(k.item));
  return Value::Of(std::move(list));
}

Result Sort(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(std::vector<Keyed> keyed, KeyedItems(call, call.arg(2)));
  if (IsTrue(call.arg(0))) std::reverse(keyed.begin(), keyed.end());
  MR_RETURN_IF_ERROR(SortKeyed(call.in, !IsTrue(call.arg(1)), &keyed));
  // Equal ones keep their order in the reversed list, too.
  if (IsTrue(call.arg(0))) std::reverse(keyed.begin(), keyed.end());
  return ListOf(std::move(keyed));
}

Result DictSort(FilterCall& call) {
  if (call.input.dict() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the filter \"dictsort\" of a ", call.input.TypeName()));
  }
  const bool by_value = call.arg(1) != nullptr && call.arg(1)->text() != nullptr &&
                        call.arg(1)->text()->bytes() == "value";
  MR_ASSIGN_OR_RETURN(const Value pairs, CallMethod(call.in, call.input, "items", {}));
  std::vector<Keyed> keyed;
  for (const Value& pair : pairs.list()->items) {
    keyed.push_back({pair.list()->items[by_value ? 1 : 0], pair});
  }
  if (IsTrue(call.arg(2))) std::reverse(keyed.begin(), keyed.end());
  MR_RETURN_IF_ERROR(SortKeyed(call.in, !IsTrue(call.arg(0)), &keyed));
  if (IsTrue(call.arg(2))) std::reverse(keyed.begin(), keyed.end());
  return ListOf(std::move(keyed));
}

Result Extreme(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(std::vector<Keyed> keyed, KeyedItems(call, call.arg(1)));
  if (keyed.empty()) return Value::UndefinedNamed("the extreme of nothing is undefined");
  MR_RETURN_IF_ERROR(SortKeyed(call.in, !IsTrue(call.arg(0)), &keyed));
  if (call.name == "min") return keyed.front().item;
  // The first of the largest.
  size_t at = keyed.size() - 1;
  while (at > 0 && Equal(keyed[at - 1].key, keyed.back().key, call.in->steps_left())) --at;
  return keyed[at].item;
}

Result Unique(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(std::vector<Keyed> keyed, KeyedItems(call, call.arg(1)));
  const bool any_case = !IsTrue(call.arg(0));
  std::vector<Value> seen;
  List list;
  for (Keyed& k : keyed) {
    const Value key = any_case && k.key.text() != nullptr ? Value::Of(Lower(*k.key.text())) : k.key;
    MR_RETURN_IF_ERROR(call.in->Step(static_cast<int64_t>(seen.size()) + 1));
    const bool old = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return Equal(other, key, call.in->steps_left());
    });
    if (old) continue;
    seen.push_back(key);
    list.items.push_back(std::move(k.item));
  }
  return Value::Of(std::move(list));
}

// A list of (key, items).
Result GroupBy(FilterCall& call) {
  if (call.arg(0) == nullptr) {
    return absl::InvalidArgumentError("the filter \"groupby\" needs an attribute");
  }
  MR_ASSIGN_OR_RETURN(std::vector<Keyed> keyed, KeyedItems(call, call.arg(0)));
  MR_RETURN_IF_ERROR(SortKeyed(call.in, false, &keyed));
  List groups;
  for (size_t begin = 0; begin < keyed.size();) {
    List members;
    size_t end = begin;
    for (; end < keyed.size() && Equal(keyed[end].key, keyed[begin].key, call.in->steps_left());
         ++end) {
      members.items.push_back(keyed[end].item);
    }
    MR_RETURN_IF_ERROR(call.in->Step());
    List pair;
    pair.tuple = true;
    pair.items = {keyed[begin].key, Value::Of(std::move(members))};
    groups.items.push_back(Value::Of(std::move(pair)));
    begin = end;
  }
  return Value::Of(std::move(groups));
}

const FilterEntry kSequenceFilters[] = {
    {"map", {}, &Map, true},
    {"select", {}, &Select, true},
    {"reject", {}, &Select, true},
    {"selectattr", {}, &Select, true},
    {"rejectattr", {}, &Select, true},
    {"sort", {"reverse", "case_sensitive", "attribute"}, &Sort},
    {"dictsort", {"case_sensitive", "by", "reverse"}, &DictSort},
    {"min", {"case_sensitive", "attribute"}, &Extreme},
    {"max", {"case_sensitive", "attribute"}, &Extreme},
    {"unique", {"case_sensitive", "attribute"}, &Unique},
    {"groupby", {"attribute"}, &GroupBy},
};

}  // namespace

absl::Span<const FilterEntry> SequenceFilters() { return kSequenceFilters; }

}  // namespace millrace::jinja
