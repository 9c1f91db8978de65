/* The structures and numbers of libfabric's interface that the library of the tests uses: those of
 * crates/fabric/src/libfabric/ffi.rs. */

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define FI_WRITE (1u << 9)
#define FI_REMOTE_WRITE (1u << 13)
#define FI_REMOTE_CQ_DATA (1u << 17)
#define FI_MR_LOCAL (1 << 2)
#define FI_MR_VIRT_ADDR (1 << 4)
#define FI_MR_ALLOCATED (1 << 5)
#define FI_MR_PROV_KEY (1 << 6)
#define FI_MR_ENDPOINT (1 << 9)
#define FI_ENABLE 6
#define FI_WAIT_FD 3
#define FI_GETWAIT 5
#define FI_EAVAIL 259
#define FI_ENOKEY 266
#define FI_KEY_NOTAVAIL UINT64_MAX

struct fid;

struct fi_ops {
	size_t size;
	int (*close)(struct fid *);
	int (*bind)(struct fid *, struct fid *, uint64_t);
	int (*control)(struct fid *, int, void *);
};

struct fid {
	size_t fclass;
	void *context;
	const struct fi_ops *ops;
};

struct fi_tx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t inject_size, size, iov_limit, rma_iov_limit;
	uint32_t tclass;
};

struct fi_rx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t total_buffered_recv, size, iov_limit;
};

struct fi_ep_attr {
	int type;
	uint32_t protocol, protocol_version;
	size_t max_msg_size, msg_prefix_size, max_order_raw, max_order_war, max_order_waw;
	uint64_t mem_tag_format;
	size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
	uint8_t *auth_key;
};

struct fi_domain_attr {
	void *domain;
	char *name;
	int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
	size_t mr_key_size, cq_data_size;
};

struct fi_fabric_attr {
	void *fabric;
	char *name, *prov_name;
	uint32_t prov_version, api_version;
};

struct fi_info {
	struct fi_info *next;
	uint64_t caps, mode;
	uint32_t addr_format;
	size_t src_addrlen, dest_addrlen;
	void *src_addr, *dest_addr, *handle;
	struct fi_tx_attr *tx_attr;
	struct fi_rx_attr *rx_attr;
	struct fi_ep_attr *ep_attr;
	struct fi_domain_attr *domain_attr;
	struct fi_fabric_attr *fabric_attr;
	void *nic;
};

struct entry {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data;
};

struct err_entry {
	struct entry entry;
	uint64_t tag;
	size_t olen;
	int err, prov_errno;
	void *err_data;
	size_t err_data_size;
};

struct rma_iov {
	uint64_t addr;
	size_t len;
	uint64_t key;
};

struct msg_rma {
	const struct iovec *iov;
	void **desc;
	size_t iov_count;
	uint64_t addr;
	const struct rma_iov *rma_iov;
	size_t rma_iov_count;
	void *context;
	uint64_t data;
};
