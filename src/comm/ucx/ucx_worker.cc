#include "comm/ucx/ucx_worker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

namespace cadre {
namespace {

constexpr unsigned kMessageId = 1;

}  // namespace

void UcxWorker::require(ucs_status_t status, const char* what) const {
  if (status != UCS_OK)
    throw Error(ErrorKind::kUnavailable, fmt::format("UCX: expected {} to succeed, found: {}; see UCX_LOG_LEVEL=info",
                                                     what, api_.ucs_status_string(status)));
}

UcxWorker::UcxWorker(int num_peers, const UcxOptions& options, Handler handler)
    : handler_(std::move(handler)),
      close_timeout_us_(options.close_timeout_us),
      peers_(static_cast<size_t>(num_peers)) {
  for (Peer& p : peers_) p.worker = this;
  create_worker(options);
  require(api_.ucp_worker_get_efd(worker_, &event_fd_), "a descriptor to wait on");
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  ucp_am_handler_param_t param{.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                                             UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
                               .id = kMessageId,
                               .flags = UCP_AM_FLAG_WHOLE_MSG,
                               .cb = on_message,
                               .arg = this};
  require(api_.ucp_worker_set_am_recv_handler(worker_, &param), "a message handler");
}

void UcxWorker::create_worker(const UcxOptions& options) {
  ucp_config_t* config = nullptr;
  require(api_.ucp_config_read(nullptr, nullptr, &config), "reading its configuration");
  if (!options.net_devices.empty()) api_.ucp_config_modify(config, "NET_DEVICES", options.net_devices.c_str());
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  const ucs_status_t status = api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  api_.ucp_config_release(config);
  require(status, "a context");
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // abort() comes from any thread, under the mutex
  require(api_.ucp_worker_create(context_, &worker_params, &worker_), "a worker");
}

UcxWorker::~UcxWorker() {
  {
    std::unique_lock lock(mutex_);
    close_endpoints();
  }
  api_.ucp_worker_destroy(worker_);
  api_.ucp_cleanup(context_);
  close(wake_fd_);
}

void UcxWorker::close_endpoints() {
  for (size_t p = 0; p < peers_.size(); ++p)
    if (peers_[p].endpoint) flush(static_cast<int>(p));
  const auto all_sent = [&] {
    for (const Peer& p : peers_)
      if (!p.death && p.num_in_flight > 0) return false;
    return true;
  };
  // What was sent last may be the last part of a peer's exchange.
  const int64_t deadline_us = SteadyClock().now_us() + close_timeout_us_;
  while (!all_sent() && SteadyClock().now_us() < deadline_us) {
    if (progress() || api_.ucp_worker_arm(worker_) != UCS_OK) continue;
    pollfd p{event_fd_, POLLIN, 0};
    poll(&p, 1, 10);
  }
  std::vector<ucs_status_ptr_t> requests;
  for (Peer& p : peers_) {
    if (!p.endpoint) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = api_.ucp_ep_close_nbx(p.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) requests.push_back(request);
    p.endpoint = nullptr;
  }
  for (const ucs_status_ptr_t request : requests) {
    while (api_.ucp_request_check_status(request) == UCS_INPROGRESS) progress();
    api_.ucp_request_free(request);
  }
}

std::string UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  require(api_.ucp_worker_get_address(worker_, &address, &bytes), "an address");
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  api_.ucp_worker_release_address(worker_, address);
  return copy;
}

void UcxWorker::set_peer_address(int peer, std::string address) {
  peers_[static_cast<size_t>(peer)].address = std::move(address);
}

void UcxWorker::set_ranks_here(int num_ranks) {
  // One round of progress asks the kernel, so a few are some microseconds. With more ranks than processors the peer
  // needs this one to run.
  num_spins_ = num_ranks <= static_cast<int>(std::thread::hardware_concurrency()) ? 8 : 1;
}

void UcxWorker::connect(int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  if (p.endpoint || p.death) return;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(p.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_error, .arg = &p};
  const ucs_status_t status = api_.ucp_ep_create(worker_, &params, &p.endpoint);
  if (status != UCS_OK) {
    p.endpoint = nullptr;
    mark_dead(p, status);
  }
}

void UcxWorker::mark_dead(Peer& peer, ucs_status_t status) {
  if (peer.death) return;
  peer.death = api_.ucs_status_string(status);
  ++num_deaths_;
}

UcxWorker::Buffer* UcxWorker::take_buffer() {
  if (free_buffers_.empty()) {
    buffers_.push_back(std::make_unique<Buffer>());
    free_buffers_.reserve(buffers_.size());
    return buffers_.back().get();
  }
  Buffer* buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

void UcxWorker::send(int peer, std::span<const std::byte> header, std::span<const std::byte> data) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  CADRE_CHECK(header.size() <= sizeof(Buffer::header) && data.size() <= kMaxMessageBytes, "{} and {} bytes",
              header.size(), data.size());
  if (p.death || !p.endpoint) return;
  Buffer* buffer = take_buffer();
  buffer->peer = &p;
  std::memcpy(buffer->header, header.data(), header.size());
  if (buffer->data.size() < data.size()) buffer->data.resize(data.size());
  if (!data.empty()) std::memcpy(buffer->data.data(), data.data(), data.size());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = buffer;
  const ucs_status_ptr_t request = api_.ucp_am_send_nbx(p.endpoint, kMessageId, buffer->header, header.size(),
                                                        buffer->data.data(), data.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    ++p.num_in_flight;
    return;
  }
  free_buffers_.push_back(buffer);
  if (UCS_PTR_IS_ERR(request)) mark_dead(p, UCS_PTR_STATUS(request));
}

void UcxWorker::on_sent(void* request, ucs_status_t status, void* user_data) {
  Buffer* buffer = static_cast<Buffer*>(user_data);
  Peer& p = *buffer->peer;
  --p.num_in_flight;
  p.worker->free_buffers_.push_back(buffer);
  if (status != UCS_OK) p.worker->mark_dead(p, status);
  p.worker->api_.ucp_request_free(request);
}

void UcxWorker::flush(int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  if (p.death || !p.endpoint) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_flushed;
  param.user_data = &p;
  const ucs_status_ptr_t request = api_.ucp_ep_flush_nbx(p.endpoint, &param);
  if (UCS_PTR_IS_PTR(request))
    ++p.num_in_flight;
  else if (UCS_PTR_IS_ERR(request))
    mark_dead(p, UCS_PTR_STATUS(request));
}

void UcxWorker::on_flushed(void* request, ucs_status_t status, void* user_data) {
  Peer& p = *static_cast<Peer*>(user_data);
  --p.num_in_flight;
  if (status != UCS_OK) p.worker->mark_dead(p, status);
  p.worker->api_.ucp_request_free(request);
}

void UcxWorker::on_error(void* user_data, ucp_ep_h, ucs_status_t status) {
  Peer& p = *static_cast<Peer*>(user_data);
  p.worker->mark_dead(p, status);
}

ucs_status_t UcxWorker::on_message(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                   const ucp_am_recv_param_t*) {
  static_cast<UcxWorker*>(self)->handler_({static_cast<const std::byte*>(header), header_bytes},
                                          {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

bool UcxWorker::wait(std::unique_lock<std::mutex>& lock, int64_t deadline_us, FunctionRef<bool()> is_done) {
  for (int spin = 1;; ++spin) {
    if (is_done()) return true;
    const bool has_moved = progress();
    if (has_moved && spin % 256 != 0) continue;
    if (is_done()) return true;
    if (spin < num_spins_) continue;
    int64_t left_us = -1;
    if (deadline_us >= 0 && (left_us = deadline_us - SteadyClock().now_us()) <= 0) return false;
    if (has_moved || api_.ucp_worker_arm(worker_) != UCS_OK) continue;  // something came in between
    pollfd fds[2] = {{event_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    const timespec limit{left_us / 1000000, left_us % 1000000 * 1000};
    lock.unlock();
    ppoll(fds, 2, left_us < 0 ? nullptr : &limit, nullptr);
    lock.lock();
    eventfd_t ignored;
    if (fds[1].revents) eventfd_read(wake_fd_, &ignored);
  }
}

void UcxWorker::wake() { eventfd_write(wake_fd_, 1); }

}  // namespace cadre
