#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "starling/base/error.h"
#include "starling/plan/pipeline_schedule.h"
#include "starling/report/bar_chart.h"
#include "starling/report/exchange_time.h"
#include "starling/report/line_chart.h"
#include "starling/report/markup.h"
#include "starling/report/page.h"
#include "starling/report/run_record.h"
#include "starling/report/table.h"
#include "starling/report/timeline.h"
#include "starling/report/timeline_picture.h"
#include "starling/telemetry/to_json.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

// Whether every element that is opened is closed, in order.
bool balanced(const std::string& svg) {
  std::vector<std::string> open;
  static const std::regex kTag("<(/?)([a-z]+)[^<>]*?(/?)>");
  for (std::sregex_iterator it(svg.begin(), svg.end(), kTag), end; it != end; ++it) {
    if ((*it)[3].length() > 0) continue;
    if ((*it)[1].length() == 0) {
      open.push_back((*it)[2]);
    } else {
      if (open.empty() || open.back() != (*it)[2]) return false;
      open.pop_back();
    }
  }
  return open.empty();
}

// A run as its events tell it: the loss falls from 2 by a factor a step.
RunRecord run_of(const std::string& name, double factor, double step_s, uint64_t bytes, int64_t ranks) {
  RunRecord record;
  record.name = name;
  record.command = "starling train -c " + name;
  RunStarted start;
  start.global_batch = 32;
  start.params = 1000;
  record.add_line(to_json(start));
  double loss = 2;
  for (int step = 1; step <= 40; ++step) {
    StepDone done;
    done.step = step;
    done.loss = loss;
    done.step_s = step_s;
    record.add_line(to_json(done));
    if (step % 10 == 0) record.add_line(to_json(EvalDone{step, loss, 1 - loss / 4, 100}));
    loss *= factor;
  }
  RunResult result;
  result.ranks = ranks;
  result.samples_per_s = 32 / step_s;
  result.train_loss = loss;
  result.test_accuracy = 1 - loss / 4;
  result.exposed_comm_s = 10 * step_s;
  result.strategy = {{"rounds", 5}, {"step_bytes", static_cast<double>(bytes)}};
  if (bytes > 0) result.strategy["bytes_balance"] = 1.25;
  result.exchange = "all-reduce";
  record.add_line(to_json(result));
  return record;
}

StepTimeline timeline_of(const std::string& name, int ranks, int micro_batches) {
  const Schedule schedule = make_schedule(name, ranks, 1, micro_batches);
  StepTimeline timeline{name, ranks, 1, micro_batches, {}};
  for (const TimedAction& t : simulate_schedule(schedule, {{0.001}, {0.002}, 0.0005}).timeline)
    timeline.actions.push_back(t);
  return timeline;
}

Comparison example() {
  Comparison comparison;
  comparison.title = "mlp <on> digits";
  comparison.lead = "Three runs.";
  comparison.facts = {{"model", "mlp"}};
  comparison.runs = {run_of("one rank", 0.95, 0.02, 0, 1), run_of("all-reduce", 0.95, 0.01, 80'000'000, 4),
                     run_of("codec=1bit", 0.93, 0.02, 4'000'000, 4)};
  comparison.runs[2].timeline = timeline_of("1f1b", 2, 4);
  comparison.runs.push_back(RunRecord{});
  comparison.runs.back().name = "gossip";
  comparison.runs.back().error = "a rank was lost";
  comparison.target.accuracy = 0.8;
  comparison.pictures = {{"All", "Caption & more", {0, 1, 2, 3}}};
  comparison.layers = {{"conv1", 1e5, 1e8}, {"fc1", 1e8, 1e6}};
  comparison.memory = {{"no sharding, 4 ranks", {4e6, 4e6, 8e6}, false},
                       {"shard=parameters", {1e6, 1e6, 2e6}, true}};
  return comparison;
}

TEST(RunRecord, ReadsTheEventsOfARun) {
  const RunRecord run = run_of("all-reduce", 0.95, 0.01, 80'000'000, 4);
  ASSERT_TRUE(run.finished);
  ASSERT_EQ(run.steps.size(), 40u);
  EXPECT_DOUBLE_EQ(run.steps[19].samples, 640);
  EXPECT_NEAR(run.steps[19].seconds, 0.2, 1e-12);
  EXPECT_NEAR(run.steps[19].bytes, 40e6, 2);  // half of the bytes at half of the run
  EXPECT_EQ(run.evaluations.size(), 4u);
  EXPECT_NEAR(run.evaluations[3].bytes, 80e6, 2);
  EXPECT_EQ(run.result.strategy.at("rounds"), 5);
  EXPECT_EQ(run.result.exchange, "all-reduce");
}

TEST(RunRecord, IgnoresWhatIsNoEventAndKeepsTheError) {
  RunRecord run;
  for (const char* line :
       {"", "step 1", "{not json", "[1]", R"({"event":"step","step":1,"loss":null,"step_s":0.1})",
        R"({"event":"error","message":"rank 1 was lost"})"})
    run.add_line(line);
  EXPECT_FALSE(run.finished);
  EXPECT_EQ(run.error, "rank 1 was lost");
  ASSERT_EQ(run.steps.size(), 1u);
  EXPECT_TRUE(std::isnan(run.steps[0].loss));
}

TEST(RunRecord, FindsWhereATargetIsReached) {
  const RunRecord run = run_of("a", 0.95, 0.01, 0, 1);
  EXPECT_EQ(reached(run, {.accuracy = 0.8})->step, 20);  // 1 - 2 · 0.95^19 / 4 = 0.81
  EXPECT_FALSE(reached(run, {.accuracy = 0.99}));
  double sum = 0;
  for (int step = 0; step < 20; ++step) sum += run.steps[step].loss;
  EXPECT_EQ(reached(run, {.loss = sum / 20})->step, 20);  // the mean of twenty steps, not of one
  EXPECT_FALSE(reached(run, {.loss = 0.01}));
}

TEST(RunRecord, ThinsByMeans) {
  const RunRecord run = run_of("a", 1, 0.01, 0, 1);
  const std::vector<RunPoint> few = thinned(run.steps, 7);
  ASSERT_EQ(few.size(), 7u);
  for (const RunPoint& point : few) EXPECT_DOUBLE_EQ(point.loss, 2);
  EXPECT_EQ(few.back().step, 40);
  EXPECT_EQ(thinned(run.steps, 100).size(), 40u);
}

TEST(ComparisonTable, SaysTheNumbersOfEachRun) {
  const std::vector<Compared> runs = compared(example());
  EXPECT_DOUBLE_EQ(runs[1].speed_up, 2);
  EXPECT_DOUBLE_EQ(runs[1].samples_to_target, 640);
  EXPECT_NEAR(runs[1].target_speed_up, 2, 1e-9);
  EXPECT_NEAR(runs[1].exposed_share, 0.25, 1e-9);
  EXPECT_EQ(runs[3].error, "a rank was lost");
  const std::string text = to_text(example());
  EXPECT_THAT(text, HasSubstr("to target"));
  EXPECT_THAT(text, HasSubstr("2.00 ×"));
  EXPECT_THAT(text, HasSubstr("gossip      failed: a rank was lost"));
  Comparison without = example();
  without.target = {};
  EXPECT_THAT(to_text(without), Not(HasSubstr("to target")));
  const auto json = nlohmann::json::parse(to_json(runs[1]));
  EXPECT_EQ(json["event"], "compared");
  EXPECT_EQ(json["bytes"], 80e6);
  EXPECT_EQ(json["bytes_balance"], 1.25);
}

TEST(LineChart, MarksAxesByRoundNumbers) {
  EXPECT_THAT(ticks(0, 10, Scale::kLinear), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(2, 128, Scale::kLog), ElementsAre(2, 5, 10, 20, 50, 100));
  EXPECT_THAT(ticks(1, 1e6, Scale::kLog), ElementsAre(1, 10, 100, 1e3, 1e4, 1e5, 1e6));
  EXPECT_EQ(short_number(0.05), "0.05");
  EXPECT_EQ(short_number(20e6), "20M");
  EXPECT_EQ(short_number(1500), "1.5k");
}

TEST(LineChart, DrawsEachSeriesAndLeavesOutWhatCannotBeShown) {
  LineChart chart;
  chart.title = "a < b";
  chart.x_scale = Scale::kLog;
  chart.series = {{"first", 1, false, true, {{0, 1}, {1, 2}, {10, 3}, {100, std::nan("")}}},
                  {"none", 2, false, false, {}}};
  const std::string svg = svg_of(chart);
  EXPECT_TRUE(balanced(svg));
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_EQ(count(svg, "<g class=\"series"), 1u);
  EXPECT_EQ(count(svg, "<circle"), 2u);
  EXPECT_THAT(svg, HasSubstr("d=\"M52.0 "));   // the first point lies on the left edge
  EXPECT_THAT(svg, HasSubstr("L426.0 30.0"));  // the last in the upper right corner
  EXPECT_TRUE(balanced(svg_of(LineChart{})));
}

TEST(BarChart, DrawsSegmentsInProportion) {
  const std::string svg =
      svg_of(BarChart{"t", {"a", "b"}, nullptr, {{"x", {1, 3}, false}, {"y", {2, 0}, true}}});
  EXPECT_TRUE(balanced(svg));
  EXPECT_EQ(count(svg, "height=\"14\""), 3u);
  EXPECT_THAT(svg, HasSubstr("data-name=\"y\" data-value=\"2\""));
  const std::string pairs = svg_of(PairChart{"t", "a", "b", "x", nullptr, {{"l", 10, 1000}, {"m", 0, 5}}});
  EXPECT_TRUE(balanced(pairs));
  EXPECT_EQ(count(pairs, "<circle"), 3u);
  EXPECT_EQ(count(pairs, "class=\"join\""), 1u);
}

TEST(ExchangeTime, IsFireCaffesFormula) {
  EXPECT_DOUBLE_EQ(star_time(128), 128);
  EXPECT_DOUBLE_EQ(tree_time(128), 14);
  EXPECT_DOUBLE_EQ(ring_time(4), 1.5);
  Comparison comparison;
  comparison.exchange_bytes = 30e6;
  comparison.exchange_bytes_per_s = 3e9;
  comparison.exchanges = {{"ring", {{2, 0.012}, {4, 0.018}}}};
  const LineChart chart = exchange_chart(comparison);
  ASSERT_EQ(chart.series.size(), 4u);
  EXPECT_NEAR(chart.series[3].points[1].second, 1.8, 1e-9);
  EXPECT_EQ(chart.series[3].run, chart.series[2].run);
}

TEST(Timeline, IsPlannedFromItsMeasuredTimes) {
  const StepTimeline measured = timeline_of("1f1b", 2, 8);
  const SimulatedStep planned = planned_step(measured);
  EXPECT_NEAR(planned.bubble, 1.0 / 9, 1e-9);  // stages alike: the formula
  EXPECT_GT(idle_share(measured), planned.bubble);
  const std::string path = testing::TempDir() + "timeline.json";
  write_timeline(path, measured);
  const StepTimeline read = read_timeline(path);
  ASSERT_EQ(read.actions.size(), measured.actions.size());
  EXPECT_EQ(read.actions[5].action, measured.actions[5].action);
  EXPECT_DOUBLE_EQ(read.actions[5].end, measured.actions[5].end);
  EXPECT_THROW(read_timeline(path + ".none"), ConfigError);
  std::ofstream(path) << R"({"schedule":"x","ranks":1,"chunks":1,"micro_batches":1,"actions":[{"rank":0}]})";
  EXPECT_THROW(read_timeline(path), ConfigError);
  StepTimeline torn = measured;
  torn.actions.pop_back();
  EXPECT_THROW(planned_step(torn), ConfigError);
}

TEST(Timeline, IsDrawnPlannedAboveMeasured) {
  const std::string svg = svg_of(timeline_of("gpipe", 2, 4));
  EXPECT_TRUE(balanced(svg));
  EXPECT_EQ(count(svg, "<rect class=\"c1\""), 2u * 2 * 4);  // forwards, planned and measured
  EXPECT_EQ(count(svg, "<rect class=\"c2\""), 2u * 2 * 4);
  EXPECT_LT(svg.find("data-name=\"planned\""), svg.find("data-name=\"measured\""));
}

TEST(Page, HoldsEveryPictureAndNothingFromElsewhere) {
  const std::string page = html_page(example());
  EXPECT_THAT(page, HasSubstr("<title>mlp &lt;on&gt; digits</title>"));
  EXPECT_THAT(page, HasSubstr("Caption &amp; more"));
  EXPECT_THAT(page, HasSubstr("failed: a rank was lost"));
  EXPECT_EQ(count(page, "<svg class=\"lines\""), 5u);  // time, samples, bytes, accuracy, FireCaffe
  EXPECT_EQ(count(page, "<svg class=\"timeline\""), 1u);
  EXPECT_EQ(count(page, "<svg class=\"bars\""), 1u);
  EXPECT_EQ(count(page, "<svg class=\"pairs\""), 1u);
  EXPECT_EQ(count(page, "<g class=\"series c1\" data-run=\"1\" data-name=\"all-reduce\""), 4u);
  EXPECT_EQ(count(page, "<g class=\"series c0\" data-run=\"0\" data-name=\"one rank\""),
            3u);  // it sends no bytes
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  std::smatch data;
  ASSERT_TRUE(std::regex_search(page, data, std::regex("id=\"data\">([^<]*)</script>")));
  EXPECT_EQ(nlohmann::json::parse(data[1].str())["runs"].size(), 4u);
  const std::string path = testing::TempDir() + "page.html";
  write_page(path, example());
  EXPECT_EQ(std::filesystem::file_size(path), page.size());
  EXPECT_THROW(write_page("/nowhere/page.html", example()), Error);
}

TEST(Markup, EscapesAndColors) {
  EXPECT_EQ(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
  EXPECT_EQ(color_class(0), "c0");
  EXPECT_EQ(color_class(8), "c8");
  EXPECT_EQ(color_class(9), "c1 dash");
}

}  // namespace
}  // namespace starling
