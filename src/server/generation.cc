#include "server/generation.h"

#include <fmt/format.h>

#include <chrono>
#include <set>

#include "base/error.h"
#include "server/api_error.h"
#include "server/json_text.h"
#include "server/random_id.h"
#include "server/routing_fields.h"

namespace cadre {
namespace {

int64_t unix_now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Error going_down() {
  return Error(ErrorKind::kUnavailable,
               "expected to finish this answer, found the server going down; send the request again");
}

std::string answer_id(ApiKind kind) { return (kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + random_id(); }

}  // namespace

Generation::Generation(GenerationContext context, ApiRequest request, std::shared_ptr<HttpExchange> exchange,
                       HttpHeaders headers, std::string request_id, int64_t arrival_us)
    : context_(std::move(context)),
      exchange_(std::move(exchange)),
      headers_(std::move(headers)),
      request_id_(std::move(request_id)),
      arrival_us_(arrival_us),
      answer_(std::move(request), *context_.model->tokenizer, answer_id(request.kind), unix_now_s()),
      is_stream_(answer_.request().stream) {
  times_.resize(static_cast<size_t>(answer_.request().num_choices()));
}

GenerationRequest Generation::generation_request(size_t prompt_idx) const {
  const ApiRequest& request = answer_.request();
  GenerationRequest out;
  out.request_id = request_id_;
  out.prompt = request.prompts[prompt_idx].ids;
  out.sampling = request.sampling;
  out.n = request.n;
  out.data_parallel_rank = request.routing.rank;
  out.bootstrap_room = request.routing.room;
  return out;
}

void Generation::start() {
  exchange_->on_closed([self = shared_from_this()] {
    self->is_over_ = true;
    self->cancel();
  });
  try {
    for (size_t i = 0; i < answer_.request().prompts.size(); ++i) {
      // Held over submit: whoever cancels meanwhile waits for the handle, and has cancelled when cancel() returns.
      const std::lock_guard lock(handles_mutex_);
      if (is_cancelled_) throw going_down();
      handles_.push_back(context_.controller.submit(
          generation_request(i),
          [self = shared_from_this(), i](Delta&& delta) { self->on_delta(i, std::move(delta)); }));
    }
  } catch (...) {
    // The deltas of those admitted so far pile up unread and go with this object.
    cancel();
    throw;
  }
  headers_.emplace_back(kRankHeader, rank_names());
  exchange_->post([self = shared_from_this()] { self->open(); });
}

// Ranks that the prompts went to, each once.
std::string Generation::rank_names() {
  const std::lock_guard lock(handles_mutex_);
  std::set<int> ranks;
  for (const RequestHandle handle : handles_) ranks.insert(context_.controller.rank_of(handle));
  return fmt::format("{}", fmt::join(ranks, ", "));
}

void Generation::cancel() {
  const std::lock_guard lock(handles_mutex_);
  is_cancelled_ = true;
  for (const RequestHandle handle : handles_) context_.controller.cancel(handle);
}

void Generation::on_delta(size_t prompt_idx, Delta&& delta) {
  observe(prompt_idx, delta);
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back({prompt_idx, std::move(delta)});
    if (std::exchange(is_draining_, true)) return;
  }
  exchange_->post([self = shared_from_this()] { self->drain(); });
}

void Generation::observe(size_t prompt_idx, const Delta& delta) {
  const int64_t now_us = context_.clock.now_us();
  ChoiceTimes& times =
      times_[prompt_idx * static_cast<size_t>(answer_.request().n) + static_cast<size_t>(delta.choice_idx)];
  const int64_t num_new = delta.num_completion_tokens - times.num_tokens;
  if (num_new > 0) {
    const int64_t since_us = times.num_tokens == 0 ? arrival_us_ : times.last_us;
    const double seconds = static_cast<double>(now_us - since_us) * 1e-6;
    if (times.num_tokens == 0) {
      context_.metrics.observe_first_token(seconds);
    } else {
      for (int64_t i = 0; i < num_new; ++i)
        context_.metrics.observe_inter_token(seconds / static_cast<double>(num_new));
    }
    times.num_tokens = delta.num_completion_tokens;
    times.last_us = now_us;
  }
  if (!delta.finish) return;
  switch (*delta.finish) {
    case FinishReason::kStop:
      context_.metrics.count_finished("stop");
      break;
    case FinishReason::kLength:
      context_.metrics.count_finished("length");
      break;
    case FinishReason::kCancelled:
      context_.metrics.count_finished("abort");
      break;
    case FinishReason::kError:
      context_.metrics.count_finished("error");
      break;
  }
}

void Generation::open() {
  if (is_stream_ && !is_over_) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers = headers_;
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");  // proxies: pass events on as they come
    exchange_->begin_stream(std::move(head));
    exchange_->set_keep_alive(context_.keep_alive_ms, ": keep-alive\n\n");
    std::string events;
    answer_.open(&events);
    exchange_->write(std::move(events));
  }
  drain();
}

void Generation::drain() {
  std::vector<Arrival> arrivals;
  for (;;) {
    arrivals.clear();
    {
      const std::lock_guard lock(mutex_);
      std::swap(arrivals, arrivals_);
      if (arrivals.empty()) {
        is_draining_ = false;
        return;
      }
    }
    std::string events;
    for (Arrival& arrival : arrivals)
      if (!is_over_) take(std::move(arrival), &events);
    if (is_stream_ && !events.empty()) exchange_->write(std::move(events));
    if (!is_over_ && answer_.is_finished()) finish();
  }
}

void Generation::take(Arrival&& arrival, std::string* events) {
  const auto finish = arrival.delta.finish;
  if (finish != FinishReason::kError && finish != FinishReason::kCancelled) {
    answer_.add(arrival.prompt_idx, std::move(arrival.delta), is_stream_ ? events : nullptr);
    return;
  }
  const Error error =
      finish == FinishReason::kError
          ? Error(ErrorKind::kInternal,
                  arrival.delta.error.empty() ? "the engine could not go on with this request" : arrival.delta.error)
          : going_down();
  fail(error, events);
}

// One choice without an answer ends the request: the others would have nowhere to go.
void Generation::fail(const Error& error, std::string* events) {
  is_over_ = true;
  cancel();
  if (is_stream_) {
    // No end mark after it: clients take that for success.
    exchange_->write(std::exchange(*events, {}) + Answer::event(error_body(api_error(error))));
    exchange_->end_stream(false);
  } else {
    HttpResponse response = error_response(error);
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    exchange_->send(std::move(response));
  }
}

void Generation::finish() {
  is_over_ = true;
  const Usage usage = answer_.usage();
  context_.metrics.observe_request(static_cast<double>(context_.clock.now_us() - arrival_us_) * 1e-6,
                                   usage.prompt_tokens, usage.completion_tokens);
  if (is_stream_) {
    std::string events;
    answer_.close(&events);
    exchange_->write(std::move(events));
    exchange_->end_stream(true);
  } else {
    HttpResponse response;
    response.headers = headers_;
    response.body = json_text(answer_.whole());
    exchange_->send(std::move(response));
  }
}

}  // namespace cadre
