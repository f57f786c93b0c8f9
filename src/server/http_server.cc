#include "server/http_server.h"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <thread>

#include "base/error.h"
#include "server/http_session.h"

namespace cadre {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

}  // namespace

struct HttpServer::Impl {
  Impl(HttpServerOptions options, HttpHandler& handler)
      : shared(std::make_shared<HttpShared>(std::move(options), handler)),
        work(shared->io.get_executor()),
        acceptor(asio::make_strand(shared->io.get_executor())) {}

  void bind();
  void accept();
  void on_socket(HttpSession::Socket socket);
  std::vector<std::shared_ptr<HttpSession>> sessions();

  std::shared_ptr<HttpShared> shared;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  // On a strand of its own, as accepting goes on while another thread may close it.
  asio::basic_socket_acceptor<tcp, asio::strand<asio::io_context::executor_type>> acceptor;
  uint16_t port = 0;
  std::vector<std::thread> threads;
};

void HttpServer::Impl::bind() {
  const HttpServerOptions& options = shared->options;
  const std::string where = fmt::format("{}:{}", options.host, options.port);
  const auto fail = [&](const error_code& error) {
    if (error == asio::error::address_in_use)
      throw Error(ErrorKind::kUnavailable,
                  fmt::format("expected to listen on {}, found the port taken by another program; "
                              "stop that program or choose another --port (0: any free one)",
                              where));
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("expected to listen on {}, found: {}; choose another --host or --port", where, error.message()));
  };
  error_code error;
  tcp::resolver resolver(shared->io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error) fail(error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (error) fail(error);
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  if (error) fail(error);
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) fail(error);
  port = acceptor.local_endpoint().port();
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(
      asio::make_strand(shared->io.get_executor()), [this](const error_code& error, HttpSession::Socket socket) {
        if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
        if (!error) {
          on_socket(std::move(socket));
          accept();
          return;
        }
        // No descriptors left, most likely: others have to close first.
        auto pause = std::make_shared<asio::steady_timer>(acceptor.get_executor(), std::chrono::milliseconds(100));
        pause->async_wait([this, pause](const error_code&) {
          if (acceptor.is_open()) accept();
        });
      });
}

void HttpServer::Impl::on_socket(HttpSession::Socket socket) {
  const int64_t max = shared->options.max_connections;
  std::shared_ptr<HttpSession> session;
  bool is_served = false;
  {
    const std::lock_guard lock(shared->mutex);
    is_served = shared->num_served < max;
    // Too many even to tell each of them: the socket closes here.
    if (!is_served && static_cast<int64_t>(shared->sessions.size()) - shared->num_served >= max) return;
    session = std::make_shared<HttpSession>(std::move(socket), shared, is_served);
    shared->num_served += is_served;
    shared->sessions.emplace(session.get(), session);
  }
  is_served ? session->start() : session->refuse_connection();
}

std::vector<std::shared_ptr<HttpSession>> HttpServer::Impl::sessions() {
  std::vector<std::shared_ptr<HttpSession>> alive;
  const std::lock_guard lock(shared->mutex);
  for (const auto& [pointer, weak] : shared->sessions)
    if (auto session = weak.lock()) alive.push_back(std::move(session));
  return alive;
}

HttpServer::HttpServer(HttpServerOptions options, HttpHandler& handler)
    : impl_(std::make_unique<Impl>(std::move(options), handler)) {
  impl_->bind();
}

HttpServer::~HttpServer() { stop(); }

uint16_t HttpServer::port() const { return impl_->port; }

void HttpServer::start() {
  impl_->accept();
  for (int i = 0; i < impl_->shared->options.num_io_threads; ++i)
    impl_->threads.emplace_back([shared = impl_->shared] { shared->io.run(); });
}

int64_t HttpServer::num_active_exchanges() const {
  const std::lock_guard lock(impl_->shared->mutex);
  return impl_->shared->num_active;
}

void HttpServer::begin_close() {
  impl_->shared->closing = true;
  for (const auto& session : impl_->sessions()) session->close_if_idle();
}

bool HttpServer::wait_until_quiet(int64_t timeout_ms) {
  std::unique_lock lock(impl_->shared->mutex);
  return impl_->shared->quiet.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                       [&] { return impl_->shared->num_active == 0; });
}

void HttpServer::stop() {
  if (impl_->shared->stopped) return;
  asio::post(impl_->acceptor.get_executor(), [this] {
    error_code ignored;
    impl_->acceptor.close(ignored);
    for (const auto& session : impl_->sessions()) session->close();
  });
  impl_->work.reset();
  for (auto& thread : impl_->threads) thread.join();
  impl_->shared->background.join();
  impl_->shared->stopped = true;
  // What was posted between the last run and the flag still holds its connection: run it, so that nothing keeps itself
  // alive.
  impl_->shared->io.restart();
  impl_->shared->io.poll();
}

}  // namespace cadre
