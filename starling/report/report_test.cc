#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>

#include "starling/base/error.h"
#include "starling/plan/pipeline_schedule.h"
#include "starling/report/bar_chart.h"
#include "starling/report/chart_grid.h"
#include "starling/report/curve_charts.h"
#include "starling/report/html_report.h"
#include "starling/report/html_table.h"
#include "starling/report/line_chart.h"
#include "starling/report/markup.h"
#include "starling/report/report_data.h"
#include "starling/report/run_record.h"
#include "starling/report/shared_cores.h"
#include "starling/report/table.h"
#include "starling/report/timeline.h"
#include "starling/report/timeline_picture.h"
#include "starling/telemetry/to_json.h"
#include "starling/testing/error_of.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

// Returns whether every opened element is closed, in order.
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

// Returns a run of 40 steps on a host with two cores. Its loss begins at 2, and each step multiplies it by
// `factor`.
RunRecord run_of(const std::string& name, double factor, double step_s, uint64_t bytes, int64_t ranks) {
  RunRecord record;
  record.name = name;
  record.command = "starling train -c " + name;
  RunStarted start;
  start.global_batch = 32;
  start.params = 1000;
  start.model = "mlp";
  start.ranks = start.local_processes = ranks;
  start.local_cores = 2;
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
  comparison.runs = {run_of("one rank", 0.95, 0.02, 0, 1),
                     run_of("all-reduce:lr=0.1", 0.95, 0.01, 80'000'000, 4),
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

TEST(RunRecord, FindsWhereATargetIsReached) {
  const RunRecord run = run_of("a", 0.95, 0.01, 0, 1);
  EXPECT_EQ(reached(run, {.accuracy = 0.8})->step, 20);  // 1 - 2 · 0.95^19 / 4 = 0.81
  EXPECT_FALSE(reached(run, {.accuracy = 0.99}));
  double sum = 0;
  for (int step = 0; step < 20; ++step) sum += run.steps[step].loss;
  EXPECT_EQ(reached(run, {.loss = sum / 20})->step, 20);  // the mean of twenty steps, not of one
  EXPECT_FALSE(reached(run, {.loss = 0.01}));
}

TEST(RunRecord, KnowsItsCoresAndRanks) {
  const RunRecord run = run_of("a", 1, 0.01, 0, 4);
  EXPECT_EQ(run.started.local_processes, 4);
  EXPECT_EQ(run.started.local_cores, 2);
  EXPECT_EQ(run.ranks(), 4);
  EXPECT_EQ(RunRecord().ranks(), 0);
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
  EXPECT_THAT(text, HasSubstr("gossip             failed: a rank was lost"));
  Comparison without = example();
  without.target = {};
  EXPECT_THAT(to_text(without), Not(HasSubstr("to target")));
  const auto json = nlohmann::json::parse(to_json(runs[1]));
  EXPECT_EQ(json["event"], "compared");
  EXPECT_EQ(json["run"], "all-reduce:lr=0.1");
  EXPECT_EQ(json["name"], "all-reduce");
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

TEST(LineChart, SaysWhichAxesAreLogarithmicAndBeginsBelowTheLeastValue) {
  LineChart chart;
  chart.x_label = "samples";
  chart.y_label = "loss";
  chart.series = {{"a", 1, false, false, {{1, 0.07}, {10, 2}}}};
  EXPECT_THAT(svg_of(chart), Not(HasSubstr("logarithmic")));
  chart.y_scale = Scale::kLog;
  std::string svg = svg_of(chart);
  EXPECT_TRUE(balanced(svg));
  EXPECT_THAT(svg, AllOf(HasSubstr(">loss (logarithmic)<"), Not(HasSubstr("samples (log"))));
  EXPECT_THAT(svg, AllOf(HasSubstr("data-y=\"log 0.05 2 "), HasSubstr(">0.05</text>")));
  chart.series[0].points[1].second = 70;  // 3 decades have ticks at powers of ten only
  EXPECT_THAT(svg_of(chart), HasSubstr("data-y=\"log 0.0466667 70 "));
  chart.y_scale = Scale::kLinear;
  chart.x_scale = Scale::kLog;
  chart.series[0].points = {{1, 1.53}, {10, 2.2}};
  svg = svg_of(chart);
  EXPECT_THAT(svg, AllOf(HasSubstr(">samples (logarithmic)<"), Not(HasSubstr("loss (log"))));
  EXPECT_THAT(svg, HasSubstr("data-y=\"lin 1.4 2.2 "));
}

TEST(LineChart, NamesTheSeriesInsideItsFrameAndThoseWithoutALine) {
  LineChart chart;
  chart.x_scale = Scale::kLog;
  chart.series = {{"one rank", 0, false, false, {{0, 2}, {0, 1}}},
                  {"two", 1, true, false, {{1, 2}, {10, 1}}},
                  {"empty", 2, false, false, {}}};
  EXPECT_THAT(invisible_series(chart), ElementsAre("one rank"));
  EXPECT_EQ(count(svg_of(chart), ">two</text>"), 0u);
  chart.legend = true;
  const std::string svg = svg_of(chart);
  EXPECT_TRUE(balanced(svg));
  EXPECT_EQ(count(svg, ">two</text>"), 1u);
  EXPECT_EQ(count(svg, "<g class=\"c1 dash\">"), 1u);
  EXPECT_EQ(count(svg, "<g class=\"series"), 1u);
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

TEST(Timeline, IsPlannedFromItsMeasuredTimes) {
  const StepTimeline measured = timeline_of("1f1b", 2, 8);
  const SimulatedStep planned = planned_step(measured);
  EXPECT_NEAR(planned.bubble, 1.0 / 9, 1e-9);  // stages alike: the formula
  EXPECT_GT(idle_share(measured), planned.bubble);
  const std::string path = testing::TempDir() + "planned-timeline.json";
  write_timeline(path, measured);
  const StepTimeline read = read_timeline(path);
  ASSERT_EQ(read.actions.size(), measured.actions.size());
  EXPECT_EQ(read.actions[5].action, measured.actions[5].action);
  EXPECT_DOUBLE_EQ(read.actions[5].end, measured.actions[5].end);
  EXPECT_THROW(read_timeline(path + ".none"), ConfigError);
  const std::string head = R"({"schedule":"x","ranks":1,"chunks":1,"micro_batches":1,"actions":[{"rank":)";
  const std::string times = R"(,"micro_batch":0,"begin_s":0,"end_s":1)";
  for (const std::string& action :
       {std::string("0"), "0" + times + R"(,"chunk":0,"kind":"X")", "0" + times + R"(,"chunk":1,"kind":"F")",
        "1" + times + R"(,"chunk":0,"kind":"F")"}) {
    std::ofstream(path) << head << action << "}]}";
    EXPECT_THAT(error_of([&] { read_timeline(path); }), HasSubstr(path)) << action;
  }
  StepTimeline torn = measured;
  torn.actions.pop_back();
  EXPECT_THROW(planned_step(torn), ConfigError);
}

// A picture of so many ranks would need all memory, and its axis would have no end.
TEST(Timeline, NumbersThatNoStepHasAreRefused) {
  const std::string path = testing::TempDir() + "timeline.json";
  const auto refused = [&](const std::string& ranks, const std::string& micro_batches,
                           const std::string& end) {
    std::ofstream(path)
        << R"({"schedule":"x","ranks":)" << ranks << R"(,"chunks":1,"micro_batches":)" << micro_batches
        << R"(,"actions":[{"rank":0,"micro_batch":0,"chunk":0,"kind":"F","begin_s":0,"end_s":1},)"
        << R"({"rank":0,"micro_batch":0,"chunk":0,"kind":"B","begin_s":1,"end_s":)" << end << "}]}";
    try {
      svg_of(read_timeline(path));
    } catch (const ConfigError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused("1", "1", "2"));
  EXPECT_TRUE(refused("2147483647", "1", "2"));
  EXPECT_TRUE(refused("1", "0", "2"));
  EXPECT_TRUE(refused("1", "1", "1e308"));
  EXPECT_TRUE(refused("1", "1", "-1"));
}

TEST(Timeline, IsDrawnPlannedAboveMeasured) {
  const std::string svg = svg_of(timeline_of("gpipe", 2, 4));
  EXPECT_TRUE(balanced(svg));
  EXPECT_EQ(count(svg, "<rect class=\"c1\""), 2u * 2 * 4);  // forwards, planned and measured
  EXPECT_EQ(count(svg, "<rect class=\"c2\""), 2u * 2 * 4);
  EXPECT_LT(svg.find("data-name=\"planned\""), svg.find("data-name=\"measured\""));
}

TEST(LineChart, DrawsFaintSeriesBehindTheOthersAndCutsThemOff) {
  LineChart chart;
  Series faint{"raw", 2, false, false, {}, true};
  for (int i = 0; i <= 100; ++i)
    faint.points.emplace_back(i, i == 50 ? 1000 : i % 2);  // one value far outside
  chart.series = {{"average", 2, false, false, {{0, 0}, {100, 1}}}, faint};
  const std::string svg = svg_of(chart);
  EXPECT_TRUE(balanced(svg));
  EXPECT_LT(svg.find("class=\"series c2 raw\" data-run=\"2\"><path"), svg.find("data-name=\"average\""));
  EXPECT_THAT(svg, Not(HasSubstr("data-name=\"raw\"")));
  EXPECT_THAT(svg, HasSubstr("data-y=\"lin 0 1 254.0 30.0\""));  // the axis leaves the far value out
  EXPECT_THAT(svg, HasSubstr("L239.0 30.0"));                    // and its line ends at the frame
  chart.series[1].faint = false;
  EXPECT_THAT(svg_of(chart), HasSubstr("data-y=\"lin 0 1000 "));
}

TEST(LineChart, ShowsALineOfOnePointAsADot) {
  LineChart chart;
  EXPECT_FALSE(has_points(chart));
  chart.series = {{"one", 1, false, false, {{1, 2}}}};
  EXPECT_TRUE(has_points(chart));
  EXPECT_EQ(count(svg_of(chart), "<circle"), 1u);
  chart.x_scale = Scale::kLog;
  chart.series[0].points = {{0, 2}};
  EXPECT_FALSE(has_points(chart));
}

TEST(ChartGrid, LeavesNoChartAloneInARow) {
  EXPECT_THAT(figure_rows(0), IsEmpty());
  EXPECT_THAT(figure_rows(1), ElementsAre(1));
  EXPECT_THAT(figure_rows(5), ElementsAre(3, 2));
  for (int figures = 2; figures < 20; ++figures) {
    const std::vector<int> rows = figure_rows(figures);
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), 0), figures);
    for (const int row : rows) EXPECT_TRUE(row == 2 || row == 3) << figures;
  }
  const std::string rows = html_figure_rows({"<i>1</i>", "", "<i>2</i>", "<i>3</i>", "<i>4</i>"});
  EXPECT_EQ(count(rows, "class=\"charts of2\""), 2u);  // the empty figure takes no place
  EXPECT_LT(rows.find("<i>2</i>"), rows.rfind("of2"));
  EXPECT_LT(rows.rfind("of2"), rows.find("<i>3</i>"));
}

TEST(CurveCharts, AverageTheLossesAndKeepTheRawOnesFaint) {
  Comparison comparison = example();
  comparison.runs[1].steps[10].loss = 5;  // a peak
  EXPECT_EQ(smoothing_steps(comparison), 2);
  EXPECT_THAT(smoothing_note(2), HasSubstr("average of about 2 steps; raw values faint"));
  EXPECT_THAT(smoothing_note(2), HasSubstr("weighs 0.667"));
  EXPECT_EQ(smoothing_note(1), "");
  const std::vector<LineChart> charts = curve_charts(comparison, comparison.pictures[0]);
  ASSERT_EQ(charts.size(), 4u);
  std::vector<Series> of_run;
  for (const Series& series : charts[0].series) {
    if (series.run == 1) of_run.push_back(series);
  }
  ASSERT_EQ(of_run.size(), 2u);
  EXPECT_TRUE(of_run[0].faint);
  EXPECT_FALSE(of_run[1].faint);
  EXPECT_DOUBLE_EQ(of_run[0].points[10].second, 5);
  EXPECT_NEAR(of_run[1].points[10].second, 5 * 2.0 / 3 + comparison.runs[1].steps[9].loss / 3, 0.05);
  EXPECT_EQ(of_run[1].points.size(), 40u);
}

TEST(CurveCharts, ShowRawLossesOnlyOfShortRuns) {
  Comparison comparison = example();
  for (RunRecord& run : comparison.runs) run.steps.resize(std::min<size_t>(run.steps.size(), 16));
  EXPECT_EQ(smoothing_steps(comparison), 1);
  const auto charts = curve_charts(comparison, comparison.pictures[0]);
  for (const Series& series : charts[0].series) EXPECT_FALSE(series.faint);
}

TEST(SharedCores, AreNamedWhereThreadsOutnumberThem) {
  Comparison comparison = example();
  std::vector<SharedCores> sharing = runs_that_share_cores(comparison);
  ASSERT_EQ(sharing.size(),
            2u);  // four ranks each on two cores; one rank does not share; the last run never started
  EXPECT_EQ(sharing[0].run, 1u);
  EXPECT_EQ(sharing[1].run, 2u);
  EXPECT_THAT(shared_cores_warning(comparison),
              AllOf(HasSubstr("Ranks share cores. The host has 2 cores"),
                    HasSubstr("all-reduce (4 processes); 1bit (4 processes).")));
  comparison.runs[0].started.threads = 3;
  EXPECT_THAT(shared_cores_warning(comparison), HasSubstr("one rank (1 process of 3 threads)"));
  for (RunRecord& run : comparison.runs) run.started.local_cores = 4;
  EXPECT_EQ(shared_cores_warning(comparison), "");
  for (RunRecord& run : comparison.runs) run.started.local_cores = 0;  // unknown
  EXPECT_EQ(shared_cores_warning(comparison), "");
}

TEST(HtmlTable, ShowsShortNamesWithTheFlagsOnHoverAndInAList) {
  const Comparison comparison = example();
  const std::string table = html_table(comparison);
  EXPECT_TRUE(balanced(table));
  EXPECT_THAT(table, HasSubstr("title=\"all-reduce:lr=0.1\">all-reduce</th>"));
  EXPECT_THAT(table,
              HasSubstr("<td data-label=\"samples/s\">3,200</td>"));  // what a card on a phone is made from
  EXPECT_EQ(count(table, "<td data-label="), 3u * 11);
  EXPECT_THAT(table, HasSubstr("colspan=\"11\">failed: a rank was lost</td>"));
  const std::string list = html_run_list(comparison);
  EXPECT_TRUE(balanced(std::regex_replace(list, std::regex("<br>"), "")));
  EXPECT_THAT(
      list, HasSubstr("<b>1bit</b><br><code>codec=1bit</code><br><code>starling train -c codec=1bit</code>"));
  EXPECT_THAT(html_column_notes(comparison), HasSubstr("accuracy 80.0 %"));
  EXPECT_TRUE(balanced(html_column_notes(comparison)));
}

TEST(ReportData, HoldsTheTableAndTheCurves) {
  Comparison comparison = example();
  comparison.runs[1].steps[3].loss = std::nan("");
  comparison.title = "</script>";
  const std::string text = report_data(comparison);
  EXPECT_THAT(text, Not(HasSubstr("<")));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["title"], "</script>");
  ASSERT_EQ(json["runs"].size(), 4u);
  const auto& run = json["runs"][1];
  EXPECT_EQ(run["name"], "all-reduce");
  EXPECT_EQ(run["run"], "all-reduce:lr=0.1");
  EXPECT_EQ(run["speed_up"], 2);
  EXPECT_EQ(run["curve"]["step"].size(), 40u);
  EXPECT_EQ(run["curve"]["samples"][19], 640);
  EXPECT_NEAR(run["curve"]["seconds"][19].get<double>(), 0.2, 1e-6);
  EXPECT_NEAR(run["curve"]["bytes"][19].get<double>(), 40e6, 100);
  EXPECT_DOUBLE_EQ(run["curve"]["loss"][1].get<double>(), 1.9);
  EXPECT_NEAR(run["curve"]["average"][1].get<double>(), (1.9 * 2 / 3 + 2 * 2.0 / 9) / (2.0 / 3 + 2.0 / 9),
              1e-5);
  EXPECT_TRUE(run["curve"]["loss"][3].is_null());
  EXPECT_EQ(run["evaluations"]["step"][1], 20);
  EXPECT_NEAR(run["evaluations"]["accuracy"][1].get<double>(), 1 - 2 * std::pow(0.95, 19) / 4, 1e-5);
  EXPECT_EQ(json["runs"][3]["curve"]["step"].size(), 0u);
}

TEST(ReportData, KeepsAtMostTwoThousandStepsOfARun) {
  Comparison comparison = example();
  std::vector<RunPoint>& steps = comparison.runs[0].steps;
  steps.resize(4001);
  for (size_t i = 0; i < steps.size(); ++i) steps[i].step = static_cast<int64_t>(i) + 1;
  const auto json = nlohmann::json::parse(report_data(comparison));
  const auto kept = json["runs"][0]["curve"]["step"].get<std::vector<int64_t>>();
  EXPECT_EQ(kept.size(), 1334u);
  EXPECT_EQ(kept[0], 3);
  EXPECT_EQ(kept.back(), 4001);
  EXPECT_EQ(json["runs"][0]["curve"]["average"].size(), kept.size());
}

TEST(HtmlReport, HoldsEveryPictureAndNothingFromElsewhere) {
  const std::string report = html_report(example());
  EXPECT_THAT(report, HasSubstr("<title>mlp &lt;on&gt; digits</title>"));
  EXPECT_THAT(report, HasSubstr("Caption &amp; more"));
  EXPECT_THAT(report, HasSubstr("failed: a rank was lost"));
  EXPECT_THAT(report, HasSubstr("role=\"note\">Ranks share cores."));
  EXPECT_THAT(report, HasSubstr("average of about 2 steps; raw values faint"));
  EXPECT_EQ(count(report, "<svg class=\"lines\""), 5u);  // time, samples, bytes, accuracy, FireCaffe
  EXPECT_EQ(count(report, "<svg class=\"timeline\""), 1u);
  EXPECT_EQ(count(report, "<svg class=\"bars\""), 1u);
  EXPECT_EQ(count(report, "<svg class=\"pairs\""), 1u);
  EXPECT_EQ(count(report, "<g class=\"series c1\" data-run=\"1\" data-name=\"all-reduce\""), 4u);
  EXPECT_EQ(count(report, "<g class=\"series c1 raw\" data-run=\"1\">"), 3u);
  EXPECT_EQ(count(report, "<g class=\"series c0\" data-run=\"0\" data-name=\"one rank\""),
            3u);                                                               // it sends no bytes
  EXPECT_EQ(count(report, "data-run=\"1\" title=\"all-reduce:lr=0.1\""), 1u);  // the legend
  EXPECT_EQ(count(report, "data-save=\"png\""), 8u);                           // one for each chart
  EXPECT_EQ(count(report, "data-save=\"table\""), 1u);
  EXPECT_EQ(count(report, "data-save=\"curves\""), 1u);
  for (const char* outside :
       {"http:", "https:", "src=\"", "src='", "@import", "url(", "fetch(", "XMLHttpRequest"})
    EXPECT_THAT(report, Not(HasSubstr(outside)));
  // The data is searched without std::regex, whose recursion overflows the stack under ASan.
  EXPECT_THAT(report, HasSubstr("id=\"data\">" + report_data(example()) + "</script>"));
  EXPECT_THAT(report_data(example()), Not(HasSubstr("<")));
  const std::string path = testing::TempDir() + "report.html";
  write_report(path, example());
  EXPECT_EQ(std::filesystem::file_size(path), report.size());
  EXPECT_THROW(write_report("/nowhere/report.html", example()), Error);
}

#ifndef __SANITIZE_ADDRESS__  // the scripts of the page are not instrumented
// Tests reports in Chromium: the files that the buttons save, and the layout at several widths.
class InChromium : public testing::Test {
 protected:
  // Opens the report of `comparison`, runs `script` in it and returns the JSON that the script passes to
  // done().
  nlohmann::json run(const Comparison& comparison, const std::string& script) {
    const TempDir own;  // another test may open another report at the same time
    const std::string folder = own.path().string(), page = folder + "/report.html";
    std::ofstream(page) << html_report(comparison) << "<script>function done(value) { var out = "
                        << "document.createElement('pre'); out.id = 'done'; out.textContent = "
                        << "encodeURIComponent(JSON.stringify(value)); document.body.appendChild(out); }\n"
                        << "(async function () {" << script
                        << "})().catch(e => done({error: String(e)}));</script>";
    const std::string command =
        "chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
        "--disable-background-networking "
        "--disable-component-update --disable-sync --user-data-dir='" +
        folder +
        "/profile' --window-size=1280,900 "
        "--virtual-time-budget=20000 --dump-dom 'file://" +
        std::filesystem::absolute(page).string() + "' 2>/dev/null";
    struct Close {
      void operator()(FILE* file) const { pclose(file); }
    };
    const std::unique_ptr<FILE, Close> pipe(popen(command.c_str(), "r"));
    std::string dom;
    char piece[4096];
    while (const size_t bytes = fread(piece, 1, sizeof piece, pipe.get())) dom.append(piece, bytes);
    const std::string opening = "<pre id=\"done\">";  // no regex: the text is long
    const size_t begin = dom.find(opening), end = dom.find("</pre>", begin);
    if (end == std::string::npos) return {};
    return nlohmann::json::parse(decoded(dom.substr(begin + opening.size(), end - begin - opening.size())));
  }

  void SetUp() override {
    if (std::system("chromium --version >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "Chromium is not installed here";
  }

 private:
  static std::string decoded(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        out += text[i];
        continue;
      }
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    }
    return out;
  }
};

// Presses every button that saves a file. A press creates an object URL and clicks a link. Here, neither
// leaves the page. Chromium's virtual time ends the page when it has nothing to do, so until() keeps it busy
// while images are decoded on other threads.
constexpr const char* kPressEveryButton = R"js(
  var channel = new MessageChannel();
  async function until(done) {
    for (var i = 0; i < 1e6 && !done(); ++i) {
      await new Promise(go => { channel.port1.onmessage = go; channel.port2.postMessage(0); });
    }
  }
  async function result(promise) {
    var value;
    promise.then(v => { value = v; });
    await until(() => value !== undefined);
    return value;
  }
  var blobs = [], names = [];
  URL.createObjectURL = function (blob) { blobs.push(blob); return "#"; };
  HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
  var buttons = document.querySelectorAll("button.save");
  document.querySelector('.legend button[data-run="2"]').click();
  buttons.forEach(button => button.click());
  await until(() => names.length === buttons.length);
  var files = {};
  for (var i = 0; i < blobs.length; ++i) {
    if (blobs[i].type === "text/csv") { files[names[i]] = await result(blobs[i].text()); continue; }
    var bitmap = await result(createImageBitmap(blobs[i])), canvas = document.createElement("canvas");
    canvas.width = bitmap.width;
    canvas.height = bitmap.height;
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    var image = canvas.getContext("2d").getImageData(0, 0, bitmap.width, bitmap.height);
    var pixels = new Uint32Array(image.data.buffer);
    var colors = {};
    pixels.forEach(pixel => { colors[pixel] = (colors[pixel] || 0) + 1; });
    files[names[i]] = {width: bitmap.width, height: bitmap.height, colors: colors};
  }
  done({files: files, buttons: buttons.length});
)js";

std::vector<std::string> lines_of(const std::string& csv) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; (end = csv.find("\r\n", begin)) != std::string::npos; begin = end + 2)
    lines.push_back(csv.substr(begin, end - begin));
  return lines;
}

TEST_F(InChromium, SavesTheTableAndTheCurvesAsCsvAndEachChartAsPng) {
  Comparison comparison = example();
  comparison.runs[3].error = "rank 1, the \"slow\" one, was lost";
  const nlohmann::json out = run(comparison, kPressEveryButton);
  ASSERT_TRUE(out.contains("files")) << out;
  const nlohmann::json& files = out["files"];
  EXPECT_EQ(files.size(), 10u);
  EXPECT_EQ(out["buttons"], 10);
  const std::vector<std::string> table = lines_of(files["mlp-on-digits-table.csv"].get<std::string>());
  ASSERT_EQ(table.size(), 5u);
  EXPECT_THAT(table[0], HasSubstr("name,run,error,ranks,"));
  EXPECT_THAT(table[2], HasSubstr("all-reduce,all-reduce:lr=0.1,,4,0.2,640,2,"));
  EXPECT_THAT(table[4], HasSubstr("gossip,gossip,\"rank 1, the \"\"slow\"\" one, was lost\",,"));
  const std::vector<std::string> curves = lines_of(files["mlp-on-digits-curves.csv"].get<std::string>());
  ASSERT_EQ(curves.size(), 1u + 3 * (40 + 4));
  EXPECT_EQ(curves[0], "name,run,part,step,samples,seconds,bytes,loss,average_loss,accuracy");
  EXPECT_EQ(curves[45], "all-reduce,all-reduce:lr=0.1,train,1,32,0.01,2000000,2,2,");
  EXPECT_THAT(curves[85], HasSubstr("all-reduce,all-reduce:lr=0.1,test,10,320,0.1,20000000,"));
  const nlohmann::json& chart = files["training-loss-against-time.png"];
  EXPECT_EQ(chart["width"], 2 * (440 + 24));
  EXPECT_GT(chart["height"], 2 * (300 + 24));  // the legend is below
  const auto pixels = [&chart](uint32_t red, uint32_t green, uint32_t blue) {
    return chart["colors"].value(std::to_string(0xffu << 24 | blue << 16 | green << 8 | red), 0);
  };
  EXPECT_GT(pixels(255, 255, 255), 300'000);  // the card
  EXPECT_GT(pixels(42, 120, 214), 500);       // the first run's line
  EXPECT_EQ(pixels(235, 104, 52), 0);         // the legend has hidden the second run
}

TEST_F(InChromium, KeepsTableAndChartsInsideTheWidth) {
  Comparison comparison = example();
  comparison.runs[1].name = "parameter-server:staleness=inf:optimizer.momentum=0.5:emulate=jitter=4x@10%";
  comparison.runs[2].name = "parameter-server:staleness=3:optimizer.momentum=0.5:emulate=jitter=4x@10%";
  comparison.facts.push_back({"data", std::string(120, 'x')});
  const nlohmann::json out = run(comparison, R"js(
    var html = document.documentElement.outerHTML.replace(/<script>function done[^]*$/, ""), widths = {};
    for (const width of [390, 640, 820, 900, 1000, 1280, 1920]) {
      var frame = document.createElement("iframe");
      frame.style.width = width + "px";
      frame.style.height = "900px";
      frame.style.border = "0";
      frame.srcdoc = "<!doctype html>" + html;
      var loaded = new Promise(go => { frame.onload = go; });
      document.body.appendChild(frame);
      await loaded;
      var page = frame.contentDocument, table = page.querySelector("table"), rows = [];
      page.querySelectorAll(".charts").forEach(grid => {
        var tops = {};
        grid.querySelectorAll("figure").forEach(f => { tops[f.offsetTop] = (tops[f.offsetTop] || 0) + 1; });
        rows.push(Object.values(tops));
      });
      widths[width] = {inner: frame.contentWindow.innerWidth, page: page.documentElement.scrollWidth,
                       table: table.scrollWidth, main: page.querySelector("main").clientWidth, rows: rows};
      frame.remove();
    }
    done(widths);
  )js");
  ASSERT_EQ(out.size(), 7u) << out;
  for (const auto& [width, seen] : out.items()) {
    EXPECT_EQ(seen["inner"], std::stoi(width));
    EXPECT_LE(seen["page"], seen["inner"]) << "at " << width;
    EXPECT_LE(seen["table"], seen["main"]) << "at " << width;
    const bool one_column = std::stoi(width) < 700;
    for (const auto& rows : seen["rows"]) {
      const bool stacked = std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row == 1; });
      EXPECT_TRUE(stacked || rows.size() == 1) << "at " << width << ": " << rows;
      EXPECT_TRUE(stacked || !one_column) << "at " << width << ": " << rows;
    }
    if (std::stoi(width) < 960) continue;
    EXPECT_EQ(seen["rows"], (nlohmann::json{{2}, {2}, {3}})) << "at " << width;
  }
}

#endif

TEST(Markup, EscapesAndColors) {
  EXPECT_EQ(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
  EXPECT_EQ(color_class(0), "c0");
  EXPECT_EQ(color_class(8), "c8");
  EXPECT_EQ(color_class(9), "c1 dash");
}

}  // namespace
}  // namespace starling
