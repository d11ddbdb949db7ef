// Advice: the first thing to try so that a run takes less time. Each rule looks at the account of the run's
// time and says what it would do. The rule that may save the most time gives the advice.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "starling/report/time_account.h"

namespace starling {

// What a rule would do.
struct Advice {
  double gain = 0;   // the share of the run's time that the rule is about, from 0 to 1; 0: no advice
  std::string what;  // flags of `starling train`, or a command
  std::string why;   // one or two sentences
};

// One rule. `candidates` returns what the rule would do, the best first, or nothing if the rule does not
// apply. The run may refuse some of the candidates.
struct AdviceRule {
  const char* name;  // for JSON and tests
  std::vector<Advice> (*candidates)(const TimeAccount& account);
};

// Returns all rules. To add a rule, write a function and a row of the table in advice.cc.
std::span<const AdviceRule> advice_rules();

// Returns the first candidate of the rule that is a command, or whose flags the run accepts. Without a
// configuration the flags cannot be checked, and the function returns the first candidate. The gain is 0 if
// there is no such candidate.
Advice advice_of(const AdviceRule& rule, const TimeAccount& account);

// The advice of one rule.
struct ChosenAdvice {
  std::string rule;  // its name; empty: no rule applies
  Advice advice;
};
// Returns the advice of the rule with the largest gain. If several gains are equal, the first of these rules
// wins. If no rule applies, the rule is empty.
ChosenAdvice choose_advice(const TimeAccount& account);

}  // namespace starling
