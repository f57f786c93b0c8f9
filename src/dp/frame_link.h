// A TCP connection that carries frames (type and bytes) both ways: sending never blocks the caller, a thread of its own
// hands in what arrives. One end accepts, the other connects.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace cadre {

struct Frame {
  uint8_t type = 0;
  std::string bytes;
};

class FrameLink {
 public:
  // Takes over a connected socket. received runs on the link's reading thread; lost (once, same thread) when the connection
  // ends for whatever reason, this side's close() included.
  FrameLink(int fd, std::function<void(Frame&&)> received, std::function<void(const std::string& how)> lost);
  ~FrameLink();
  FrameLink(const FrameLink&) = delete;

  void start();                 // begins reading and writing
  void send(Frame frame);       // any thread; dropped when the connection has ended
  void flush_and_close();       // waits until what was sent has gone to the system, then ends the connection

 private:
  void read_loop();
  void write_loop();

  int fd_;
  std::function<void(Frame&&)> received_;
  std::function<void(const std::string&)> lost_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> queue_;  // guarded by mutex_
  bool is_closing_ = false;  // guarded by mutex_
  bool is_broken_ = false;   // guarded by mutex_
  std::thread reader_, writer_;
};

// Listens on host, a free port; accept() gives connected sockets until close().
class FrameListener {
 public:
  explicit FrameListener(const std::string& host);
  ~FrameListener();
  int port() const { return port_; }
  int accept(int64_t timeout_us);  // throws Error at the deadline

 private:
  int fd_ = -1;
  int port_ = 0;
};

// A socket connected to host:port. Throws Error.
int connect_frames(const std::string& host, int port, int64_t timeout_us);

// One frame, for greetings before a link is made. Throws Error.
void write_frame(int fd, const Frame& frame);
Frame read_frame(int fd, int64_t timeout_us);

}  // namespace cadre
