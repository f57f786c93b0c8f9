// The functions of UCX that are used, found when the first world of processes is made. UCX is not linked, because its
// libraries change a process by being loaded (signal handlers, hooks on memory calls), and most processes never use it.
#pragma once

#include <ucp/api/ucp.h>

namespace cadre {

struct UcxApi {
  // Throws Error when the library is not installed.
  UcxApi();

#define CADRE_UCX_FUNCTIONS(X)                                                                                       \
  X(ucp_config_read)                                                                                                 \
  X(ucp_config_modify) X(ucp_config_release) X(ucp_init_version) X(ucp_cleanup) X(ucp_worker_create)                 \
      X(ucp_worker_destroy) X(ucp_worker_get_efd) X(ucp_worker_arm) X(ucp_worker_progress) X(ucp_worker_get_address) \
          X(ucp_worker_release_address) X(ucp_worker_set_am_recv_handler) X(ucp_ep_create) X(ucp_ep_close_nbx)       \
              X(ucp_ep_flush_nbx) X(ucp_am_send_nbx) X(ucp_request_check_status) X(ucp_request_free)                 \
                  X(ucs_status_string) X(ucp_get_version) X(ucp_context_print_info)
#define X(name) decltype(&::name) name = nullptr;
  CADRE_UCX_FUNCTIONS(X)
#undef X
};

}  // namespace cadre
