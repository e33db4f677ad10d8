// The parsed template. Written once by the parser, then only read.
#ifndef MILLRACE_MODEL_JINJA_AST_H_
#define MILLRACE_MODEL_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace millrace::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kConstant,   // value
    kName,       // name
    kList,       // args
    kTuple,      // args
    kDict,       // args: key, value, key, value, ...
    kNot,        // args[0]
    kNegate,     // args[0]
    kPlus,       // args[0]
    kAnd,        // args
    kOr,         // args
    kBinary,     // name is the operator; args[0], args[1]
    kCompare,    // args[0] names[0] args[1] names[1] args[2] ...
    kConcat,     // args, joined as text
    kCondition,  // args[0] if args[1] else args[2] (may be missing)
    kAttribute,  // args[0].name
    kItem,       // args[0][args[1]]
    kSlice,      // args[0][args[1]:args[2]:args[3]], null where left out
    kCall,       // args[0](args[1...], named...)
    kFilter,     // args[0] | name(args[1...], named...); args[0] is null in a filter block
    kTest        // args[0] is name(args[1...], named...)
  };
  Kind kind;
  int line = 0;
  int depth = 1;  // of the tree below, this node included
  std::string name;
  std::vector<std::string> names;
  Value value;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Node;
using Body = std::vector<Node>;

struct Node {
  enum class Kind {
    kText,         // text
    kOutput,       // exprs[0]
    kIf,           // exprs[i] guards bodies[i]; one more body is the else
    kFor,          // targets in exprs[0] if exprs[1] (may be null); bodies[0], else bodies[1]
    kSet,          // targets = exprs[0]; or name.attribute
    kSetBlock,     // targets = bodies[0] | exprs[0] (may be null)
    kMacro,        // name, targets with defaults in exprs (null where none), bodies[0]
    kCallBlock,    // exprs[0] is called with caller = bodies[0] over targets
    kFilterBlock,  // bodies[0] through exprs[0]
    kWith,         // targets[i] = exprs[i]; bodies[0]
    kGeneration,   // bodies[0]
    kBreak,
    kContinue
  };
  Kind kind;
  int line = 0;
  Value text;
  std::string name;
  std::string attribute;  // kSet of a namespace's field
  bool recursive = false;
  std::vector<std::string> targets;
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;
};

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_AST_H_
