#include "starling/commands/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "starling/commands/doctor_parts.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace doctor {

void Findings::text(std::string key, std::string name, std::string value) {
  section.facts.push_back({std::move(key), std::move(name), std::move(value), 0, false});
}

void Findings::number(std::string key, std::string name, double value, std::string shown) {
  section.facts.push_back({std::move(key), std::move(name), std::move(shown), value, true});
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace doctor

DoctorReport examine() {
  DoctorReport report;
  for (auto* part : {doctor::examine_build, doctor::examine_cpu, doctor::examine_memory,
                     doctor::examine_arithmetic, doctor::examine_network, doctor::examine_limits}) {
    doctor::Findings found = part();
    report.sections.push_back(std::move(found.section));
    report.problems.insert(report.problems.end(), found.problems.begin(), found.problems.end());
  }
  return report;
}

std::string to_text(const DoctorReport& report, bool color, int columns) {
  constexpr int kValue = 26;  // column at which values begin
  std::string out;
  for (const DoctorSection& section : report.sections) {
    out += paint(color, Color::kBold, section.title) + "\n";
    for (const DoctorFact& fact : section.facts) {
      if (fact.name.empty()) continue;
      out += "  " + paint(color, Color::kDim, fmt::format("{:<{}}", fact.name, kValue - 3)) + " ";
      out += wrapped(fact.text, columns, kValue, kValue) + "\n";
    }
  }
  if (report.problems.empty()) return out + paint(color, Color::kGreen, "No problems found.") + "\n";
  out += paint(color, Color::kBold, "problems") + "\n";
  for (const DoctorProblem& problem : report.problems) {
    const char* mark = problem.serious ? "problem" : "note";
    out += "  " + paint(color, problem.serious ? Color::kRed : Color::kYellow, fmt::format("{:<8}", mark));
    out += wrapped(problem.what, columns, 10, 10) +
           "\n          fix: " + wrapped(problem.fix, columns, 15, 15) + "\n";
  }
  return out;
}

std::string to_json(const DoctorReport& report) {
  nlohmann::ordered_json out;
  out["event"] = "doctor";
  for (const DoctorSection& section : report.sections) {
    auto& object = out[section.title] = nlohmann::ordered_json::object();
    for (const DoctorFact& fact : section.facts) {
      if (fact.number) {
        const auto whole = static_cast<int64_t>(fact.value);
        if (static_cast<double>(whole) == fact.value) {
          object[fact.key] = whole;
        } else {
          object[fact.key] = fact.value;
        }
      } else {
        object[fact.key] = fact.text;
      }
    }
  }
  out["problems"] = nlohmann::ordered_json::array();
  for (const DoctorProblem& p : report.problems) {
    out["problems"].push_back({{"what", p.what}, {"fix", p.fix}, {"serious", p.serious}});
  }
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace starling
