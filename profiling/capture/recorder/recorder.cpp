// Writes oneDNN's log of a program to a file, with the torch operator that made each line.
//
// oneDNN prints a line by C's printf, on the thread that executes the primitive, while the torch
// operator that called it is still running there. So C's `stdout` becomes a stream that calls
// `take_output` at each line, on that thread, and torch calls `begin` and `end` around each
// operator, on all threads. No clock is compared, and two threads are never confused. Python's
// output and that of child processes go to descriptor 1 as before, and so do lines of other C code.

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

struct Frame {
  std::string name;
  std::vector<int64_t> sizes;  // of the tensors among the inputs, each after its number of axes
  const std::string* module_before = nullptr;  // in frames of the backward pass
};

struct Thread {
  std::vector<Frame> frames;  // those below `depth` are running; the others keep their memory
  size_t depth = 0;
  const std::string* module = nullptr;
  bool has_reasons = false;  // the running operator has chosen an implementation
};
thread_local Thread thread;

struct Forward {  // the last operator of a forward pass with this number
  int64_t sequence = -1;
  uint64_t thread = 0;
  const std::string* module = nullptr;
};
constexpr size_t kForwards = 1 << 18;  // operators between a node's forward and its backward

struct State {
  std::mutex mutex;
  FILE* log = nullptr;  // opened at the first line of this process
  bool is_broken = false;  // it cannot be written
  std::string operator_line;  // the last one in the log
  std::vector<Forward> forwards = std::vector<Forward>(kForwards);
};
// Neither is destroyed: oneDNN may print while the process ends.
State* state = new State;
std::unordered_set<std::string>& modules = *new std::unordered_set<std::string>;
std::string folder, facts;
FILE* terminal;
int64_t first_step, last_step;  // 0, 0: all
int64_t step = 0;  // the running one; 0 before the end of the first
bool is_recording;

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (function.isAsync()) return nullptr;  // may end on another thread
  if (thread.depth == thread.frames.size()) thread.frames.emplace_back();
  Frame& frame = thread.frames[thread.depth++];
  frame.name = function.name();
  frame.sizes.clear();
  frame.module_before = nullptr;
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined() || input.toTensor().is_nested()) continue;
    const auto sizes = input.toTensor().sizes();
    frame.sizes.push_back(sizes.size());
    frame.sizes.insert(frame.sizes.end(), sizes.begin(), sizes.end());
  }
  const int64_t sequence = function.seqNr();
  if (sequence < 0) return nullptr;
  // Each thread counts from 0, so a node has the number and the thread of its forward operator.
  const bool is_backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  const uint64_t maker = is_backward ? function.forwardThreadId() : function.threadId();
  std::lock_guard<std::mutex> lock(state->mutex);
  Forward& entry = state->forwards[(sequence + maker * 7919) % kForwards];
  if (!is_backward) {
    entry = {sequence, maker, thread.module};
  } else {
    frame.module_before = thread.module;
    const bool is_known = entry.sequence == sequence && entry.thread == maker;
    thread.module = is_known ? entry.module : nullptr;
  }
  return nullptr;
}

void end(const at::RecordFunction& function, at::ObserverContext*) {
  if (function.isAsync() || thread.depth == 0) return;
  const Frame& frame = thread.frames[--thread.depth];
  thread.has_reasons = false;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) thread.module = frame.module_before;
}

std::string as_json(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ') continue;
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string describe_operator() {
  std::string name, caller, shapes;
  if (thread.depth > 0) {
    const Frame& frame = thread.frames[thread.depth - 1];
    name = frame.name;
    caller = thread.frames[0].name;
    for (size_t at = 0; at < frame.sizes.size();) {
      if (at) shapes += ' ';
      const size_t axes = frame.sizes[at++];
      for (size_t axis = 0; axis < axes; ++axis) {
        shapes += (axis ? "x" : "") + std::to_string(frame.sizes[at++]);
      }
    }
  }
  return "profilednn_operator,{\"name\": " + as_json(name) + ", \"caller\": " + as_json(caller) +
         ", \"module\": " + as_json(thread.module ? *thread.module : "") +
         ", \"shapes\": " + as_json(shapes) + "}\n";
}

// The following three are called with the mutex.
void put(const std::string& text) {
  if (state->is_broken || fwrite(text.data(), 1, text.size(), state->log) == text.size()) return;
  state->is_broken = true;
  fprintf(stderr, "capture: %s: cannot be written: %s; the log ends here\n", folder.c_str(),
          strerror(errno));
}

bool open_log() {
  if (state->log || state->is_broken) return state->log;
  std::string name = folder + "/" + std::to_string(getpid());
  do {
    state->log = fopen((name + ".log").c_str(), "aex");  // x: no earlier file, and no link
    name += "-exec";  // a process that became another program
  } while (!state->log && errno == EEXIST);
  if (state->log) {
    setvbuf(state->log, nullptr, _IONBF, 0);  // a killed process keeps its lines
    put("profilednn_facts,{\"threads\": " + std::to_string(at::get_num_threads()) + ", " + facts +
        "}\n");
  } else {
    state->is_broken = true;
    fprintf(stderr, "capture: %s: cannot be written: %s\n", folder.c_str(), strerror(errno));
  }
  return state->log;
}

void put_mark(const char* edge, int64_t number) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double milliseconds = std::chrono::duration<double, std::milli>(now).count();
  put("profilednn_mark," + std::to_string(milliseconds) + "," + edge + "," +
      std::to_string(number) + "\n");
}

// Takes what C code prints; glibc calls it for each line, with the lock of the stream.
ssize_t take_output(void*, const char* text, size_t size) {
  if (!memmem(text, size, "_verbose,", 9)) {
    fwrite(text, 1, size, terminal);
    if (size && text[size - 1] != '\n') fflush(terminal);
    return size;
  }
  const bool is_execution = memmem(text, size, ",exec,", 6);
  // Outside of the recorded steps, what an operator executes after it has chosen implementations
  // is written, but marked: it tells which primitive the reasons before it are about.
  if (is_execution && !is_recording && !thread.has_reasons) return size;
  if (!is_execution) thread.has_reasons = true;
  const std::string line = describe_operator();
  std::lock_guard<std::mutex> lock(state->mutex);
  if (!open_log()) return size;
  if (line != state->operator_line) {
    put(line);
    state->operator_line = line;
  }
  put((is_execution && !is_recording ? "profilednn_chosen," : "") + std::string(text, size));
  return size;
}

void in_child() {  // after fork, where other threads and their locks are gone
  state = new State;
  thread.module = nullptr;
}

}  // namespace

extern "C" {

// Returns 0, or 1 if a stream cannot be made. `facts_json` has no braces.
int start_recording(const char* log_folder, const char* facts_json, int64_t first, int64_t last) {
  folder = log_folder;
  facts = facts_json;
  first_step = first;
  last_step = last;
  is_recording = first <= 1;
  cookie_io_functions_t functions{};
  functions.write = take_output;
  FILE* stream = fopencookie(nullptr, "w", functions);
  if (!stream) return 1;
  setvbuf(stream, nullptr, _IOLBF, 1 << 16);
  pthread_atfork(nullptr, nullptr, in_child);
  terminal = stdout;
  stdout = stream;
  at::addGlobalCallback(
      at::RecordFunctionCallback(begin, end)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  return 0;
}

// Sets the module whose forward pass runs on this thread; returns the one before.
const void* enter_module(const char* name) {
  std::lock_guard<std::mutex> lock(state->mutex);
  const void* before = thread.module;
  thread.module = &*modules.insert(name).first;
  return before;
}

void leave_module(const void* before) { thread.module = static_cast<const std::string*>(before); }

// Ends the step of this number and begins the next one.
void end_step(int64_t number) {
  std::lock_guard<std::mutex> lock(state->mutex);
  if (step == number && is_recording && state->log) put_mark("end", number);
  step = number + 1;
  is_recording = !first_step || (step >= first_step && step <= last_step);
  if (is_recording && open_log()) put_mark("begin", step);
}
}
