#include "starling/queue/queue_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/json_number.h"
#include "starling/base/utf8.h"
#include "starling/queue/policy.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr int kSchemaVersion = 1;

constexpr const char* kTables = R"(
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE usage(user TEXT PRIMARY KEY, amount REAL NOT NULL, at_s REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE job(id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, slots INTEGER NOT NULL,
  priority INTEGER NOT NULL, expected_s REAL NOT NULL, words TEXT NOT NULL, folder TEXT NOT NULL,
  environment TEXT NOT NULL, state TEXT NOT NULL, stop INTEGER NOT NULL, cancel_asked INTEGER NOT NULL,
  attempt INTEGER NOT NULL, preemptions INTEGER NOT NULL, losses INTEGER NOT NULL, submitted_s REAL NOT NULL,
  queued_s REAL NOT NULL, started_s REAL NOT NULL, stopped_s REAL NOT NULL, ended_s REAL NOT NULL,
  ran_s REAL NOT NULL, status INTEGER NOT NULL, hosts TEXT NOT NULL, local_slots TEXT NOT NULL);
CREATE INDEX job_state ON job(state);
CREATE TABLE transition(job INTEGER NOT NULL REFERENCES job, at_s REAL NOT NULL, from_state TEXT NOT NULL,
  to_state TEXT NOT NULL, why TEXT NOT NULL);
CREATE INDEX transition_job ON transition(job);
)";

constexpr std::array kStateNames = {"queued", "starting", "running",  "stopping",
                                    "done",   "failed",   "cancelled"};

std::string text_of_hosts(const std::vector<HostSlots>& hosts) {
  auto json = nlohmann::json::array();
  for (const HostSlots& host : hosts) json.push_back({host.name, host.slots});
  return json.dump();
}

// Returns the hosts as they are written behind --hosts.
std::string flag_of_hosts(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", host.name, host.slots);
  return text;
}

// Throws ConfigError if a text cannot be stored.
void check_text(const JobRecord& job) {
  for (const std::string& word : job.words)
    if (!is_utf8(word)) throw ConfigError("", fmt::format("\"{}\" is not UTF-8: rename it", printable(word)));
  if (!is_utf8(job.folder))
    throw ConfigError(
        "", fmt::format("{}: the name of the folder is not UTF-8: rename it", printable(job.folder)));
  if (!is_utf8(job.user)) throw ConfigError("--user", "the name is not UTF-8");
  for (const std::string& variable : job.environment)
    if (!is_utf8(variable))
      throw ConfigError("", fmt::format("the environment variable {} is not UTF-8: unset it",
                                        printable(variable.substr(0, variable.find('=')))));
}

// Reads a row. Throws Error (kCheckpoint) that names the row if a text of it is not the JSON that was
// written.
template <typename Read>
auto read_row(const std::string& name, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the queue's file is damaged: {} cannot be read ({}); restore the file from a "
                            "copy, or start a new queue in another folder",
                            name, error.what()));
  }
}

std::vector<HostSlots> hosts_of_text(const std::string& text) {
  std::vector<HostSlots> hosts;
  for (const auto& host : nlohmann::json::parse(text))
    hosts.push_back({host.at(0).get<std::string>(), integer_of<int>(host.at(1))});
  return hosts;
}

std::string text_of_words(const std::vector<std::string>& words) {
  return nlohmann::json(words).dump();
}

// Reads the columns in the order of the table.
JobRecord job_of(const Statement& row) {
  JobRecord job;
  int c = 0;
  job.id = row.integer(c++);
  job.user = row.text(c++);
  job.slots = static_cast<int>(row.integer(c++));
  job.priority = static_cast<int>(row.integer(c++));
  job.expected_s = row.real(c++);
  job.words = nlohmann::json::parse(row.text(c++)).get<std::vector<std::string>>();
  job.folder = row.text(c++);
  job.environment = nlohmann::json::parse(row.text(c++)).get<std::vector<std::string>>();
  job.state = job_state_named(row.text(c++));
  job.stop = static_cast<StopReason>(row.integer(c++));
  job.cancel_asked = row.integer(c++) != 0;
  job.attempt = static_cast<int>(row.integer(c++));
  job.preemptions = static_cast<int>(row.integer(c++));
  job.losses = static_cast<int>(row.integer(c++));
  for (double* time :
       {&job.submitted_s, &job.queued_s, &job.started_s, &job.stopped_s, &job.ended_s, &job.ran_s})
    *time = row.real(c++);
  job.status = static_cast<int>(row.integer(c++));
  job.hosts = hosts_of_text(row.text(c++));
  job.local_slots = integers_of<int>(nlohmann::json::parse(row.text(c++)));
  return job;
}

std::vector<JobRecord> jobs_of(Statement rows) {
  std::vector<JobRecord> jobs;
  while (rows.next())
    jobs.push_back(read_row(fmt::format("job {}", rows.integer(0)), [&] { return job_of(rows); }));
  return jobs;
}

}  // namespace

const char* name_of(QueueJobState state) {
  return kStateNames[static_cast<size_t>(state)];
}

QueueJobState job_state_named(std::string_view name) {
  const auto at = std::find(kStateNames.begin(), kStateNames.end(), name);
  if (at == kStateNames.end())
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("\"{}\" is no state of a job: the queue's file is damaged", name));
  return static_cast<QueueJobState>(at - kStateNames.begin());
}

std::map<std::string, QueueUser> parse_queue_users(std::string_view text) {
  std::map<std::string, QueueUser> users;
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const size_t colon = entry.find(':');
    const std::string name(entry.substr(0, colon));
    std::string_view rest = colon == std::string_view::npos ? "" : entry.substr(colon + 1);
    QueueUser user;
    bool right = !name.empty();
    if (!rest.empty()) {
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), user.share);
      right = right && error == std::errc() && user.share > 0 && user.share <= 1e6;
      rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    }
    if (!rest.empty()) {
      const auto [end, error] =
          std::from_chars(rest.data() + 1, rest.data() + rest.size(), user.most_priority);
      right = right && rest.front() == ':' && error == std::errc() && end == rest.data() + rest.size();
    }
    if (!right || (colon != std::string_view::npos && colon + 1 == entry.size()))
      throw ConfigError("--users", fmt::format("\"{}\" is not NAME, NAME:SHARE or NAME:SHARE:PRIORITY with a "
                                               "share above 0, as in ada:2,bert:1:5",
                                               entry));
    if (!users.emplace(name, user).second)
      throw ConfigError("--users", fmt::format("{} is named twice", name));
  }
  return users;
}

QueueStore::QueueStore(const std::string& path, bool creates)
    : db_(
          [&] {
            if (!creates && ::access(path.c_str(), F_OK) != 0)
              throw ConfigError("--state",
                                fmt::format("{} does not exist. Start the daemon with `starling queue "
                                            "serve`, or name its folder by --state",
                                            path));
            return path;
          }(),
          creates) {
  db_.run_script("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;");
  if (creates && schema_version() == 0) {
    Transaction transaction(db_);
    if (schema_version() == 0)  // no other process has made the tables since
      db_.run_script(fmt::format("{} PRAGMA user_version={};", kTables, kSchemaVersion));
    transaction.commit();
  }
  const int64_t version = schema_version();
  if (version != kSchemaVersion)
    throw ConfigError("--state", fmt::format("{} is a queue of version {}, and this program uses version {}",
                                             path, version, kSchemaVersion));
}

int64_t QueueStore::schema_version() {
  Statement row = db_.query("PRAGMA user_version");
  return row.next() ? row.integer(0) : 0;
}

int64_t QueueStore::version() {
  Statement row = db_.query("PRAGMA data_version");
  return row.next() ? row.integer(0) : 0;
}

void QueueStore::put_settings(const QueueSettings& settings) {
  Transaction transaction(db_);
  const int slots = slots_of(settings.hosts);
  const auto same = [](const HostSlots& a, const HostSlots& b) {
    return a.name == b.name && a.slots == b.slots;
  };
  const std::vector<HostSlots> before = this->settings().hosts;
  const bool equal =
      std::equal(before.begin(), before.end(), settings.hosts.begin(), settings.hosts.end(), same);
  for (const JobRecord& job : active()) {
    if (!equal && holds_slots(job.state))
      throw ConfigError("--hosts",
                        fmt::format("job {} runs. Give the hosts that it was started with, --hosts {}, or "
                                    "wait until no job runs",
                                    job.id, flag_of_hosts(before)));
    if (job.slots > slots)
      throw ConfigError("--hosts",
                        fmt::format("job {} needs {} slots, and the hosts have {}. Cancel it first", job.id,
                                    job.slots, slots));
  }
  auto users = nlohmann::json::object();
  for (const auto& [name, user] : settings.users) users[name] = {user.share, user.most_priority};
  for (const auto& [name, value] :
       {std::pair<const char*, std::string>{"hosts", text_of_hosts(settings.hosts)},
        {"users", users.dump()},
        {"half_life_s", nlohmann::json(settings.half_life_s).dump()}})
    db_.run("INSERT OR REPLACE INTO setting VALUES(?,?)", std::string_view(name), std::string_view(value));
  transaction.commit();
}

QueueSettings QueueStore::settings() {
  QueueSettings settings;
  Statement rows = db_.query("SELECT name, value FROM setting");
  while (rows.next()) {
    const std::string name = rows.text(0), value = rows.text(1);
    read_row("the setting " + name, [&] {
      const auto json = nlohmann::json::parse(value);
      if (name == "hosts") settings.hosts = hosts_of_text(value);
      if (name == "half_life_s") settings.half_life_s = json.get<double>();
      if (name != "users") return;
      for (const auto& [user, numbers] : json.items())
        settings.users[user] = {numbers.at(0).get<double>(), integer_of<int>(numbers.at(1))};
    });
  }
  return settings;
}

int64_t QueueStore::submit(JobRecord job, double now_s) {
  check_text(job);
  Transaction transaction(db_);
  const QueueSettings known = settings();
  const int slots = slots_of(known.hosts);
  if (job.slots > slots)
    throw ConfigError("--ranks", fmt::format("the job needs {} slots, and all hosts of the queue have {}",
                                             job.slots, slots));
  const auto user = known.users.find(job.user);
  if (!known.users.empty() && user == known.users.end())
    throw ConfigError("--user",
                      fmt::format("{} has no share of this cluster. `starling queue serve --users` names "
                                  "the users",
                                  job.user));
  const int most = user == known.users.end() ? 0 : user->second.most_priority;
  if (job.priority > most)
    throw ConfigError("--priority",
                      fmt::format("{} is above {}, the largest priority of {}. `starling queue serve "
                                  "--users NAME:SHARE:PRIORITY` allows more",
                                  job.priority, most, job.user));
  db_.run(
      "INSERT INTO "
      "job(user,slots,priority,expected_s,words,folder,environment,state,stop,cancel_asked,attempt,"
      "preemptions,losses,submitted_s,queued_s,started_s,stopped_s,ended_s,ran_s,status,hosts,local_slots) "
      "VALUES(?,?,?,?,?,?,?,'queued',0,0,0,0,0,?,?,-1,-1,-1,0,-1,'[]','[]')",
      std::string_view(job.user), job.slots, job.priority, job.expected_s,
      std::string_view(text_of_words(job.words)), std::string_view(job.folder),
      std::string_view(text_of_words(job.environment)), now_s, now_s);
  const int64_t id = db_.last_row();
  note(id, now_s, "", "queued", "submitted");
  transaction.commit();
  return id;
}

QueueJobState QueueStore::cancel(int64_t id, double now_s) {
  Transaction transaction(db_);
  const std::optional<JobRecord> found = job(id);
  if (!found)
    throw ConfigError("", fmt::format("there is no job {}. `starling queue list --all` shows the jobs", id));
  if (found->state == QueueJobState::kQueued) {
    db_.run("UPDATE job SET state='cancelled', ended_s=? WHERE id=?", now_s, id);
    note(id, now_s, "queued", "cancelled", "cancelled by the user");
  } else if (!is_final(found->state)) {
    db_.run("UPDATE job SET cancel_asked=1 WHERE id=?", id);
  }
  transaction.commit();
  return found->state;
}

std::vector<JobRecord> QueueStore::active() {
  return jobs_of(db_.query(
      "SELECT id,user,slots,priority,expected_s,'[]','','[]',state,stop,cancel_asked,attempt,preemptions,"
      "losses,submitted_s,queued_s,started_s,stopped_s,ended_s,ran_s,status,hosts,local_slots FROM job "
      "WHERE state IN ('queued','starting','running','stopping') ORDER BY id"));
}

std::vector<JobRecord> QueueStore::all(bool ended) {
  if (ended) return jobs_of(db_.query("SELECT * FROM job ORDER BY id"));
  return jobs_of(
      db_.query("SELECT * FROM job WHERE state IN ('queued','starting','running','stopping') ORDER BY id"));
}

std::optional<JobRecord> QueueStore::job(int64_t id) {
  Statement row = db_.query("SELECT * FROM job WHERE id=?", id);
  if (!row.next()) return std::nullopt;
  return read_row(fmt::format("job {}", id), [&] { return job_of(row); });
}

std::vector<JobTransition> QueueStore::log(int64_t id) {
  std::vector<JobTransition> log;
  Statement rows =
      db_.query("SELECT at_s,from_state,to_state,why FROM transition WHERE job=? ORDER BY rowid", id);
  while (rows.next()) log.push_back({rows.real(0), rows.text(1), rows.text(2), rows.text(3)});
  return log;
}

std::map<std::string, DecayedUsage> QueueStore::usage() {
  std::map<std::string, DecayedUsage> usage;
  Statement rows = db_.query("SELECT user,amount,at_s FROM usage");
  while (rows.next()) usage[rows.text(0)] = {rows.real(1), rows.real(2)};
  return usage;
}

void QueueStore::charge(const JobRecord& job, double ended_s) {
  const double half_life = settings().half_life_s;
  DecayedUsage usage = this->usage()[job.user];
  usage.add(job.slots, job.started_s, ended_s, half_life);
  db_.run("INSERT OR REPLACE INTO usage VALUES(?,?,?)", std::string_view(job.user), usage.amount, usage.at_s);
}

void QueueStore::note(int64_t id, double now_s, const std::string& from, const std::string& to,
                      const std::string& why) {
  db_.run("INSERT INTO transition VALUES(?,?,?,?,?)", id, now_s, std::string_view(from), std::string_view(to),
          std::string_view(why));
}

bool QueueStore::move(const JobRecord& before, const JobRecord& after, double now_s, const std::string& why) {
  const std::string from = name_of(before.state), to = name_of(after.state);
  Transaction transaction(db_);
  const int changed = db_.run(
      "UPDATE job SET "
      "state=?,stop=?,attempt=?,preemptions=?,losses=?,queued_s=?,started_s=?,stopped_s=?,ended_s=?,"
      "ran_s=?,status=?,hosts=?,local_slots=? WHERE id=? AND state=? AND attempt=?",
      std::string_view(to), static_cast<int>(after.stop), after.attempt, after.preemptions, after.losses,
      after.queued_s, after.started_s, after.stopped_s, after.ended_s, after.ran_s, after.status,
      std::string_view(text_of_hosts(after.hosts)),
      std::string_view(nlohmann::json(after.local_slots).dump()), after.id, std::string_view(from),
      before.attempt);
  if (changed == 0) return false;
  if (after.ran_s > before.ran_s) charge(before, before.started_s + (after.ran_s - before.ran_s));
  note(after.id, now_s, from, to, why);
  if (at) at(from + ">" + to + " before");
  transaction.commit();
  if (at) at(from + ">" + to + " after");
  return true;
}

}  // namespace starling
