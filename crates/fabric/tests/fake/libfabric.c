/* A libfabric.so.1 for tests, whose provider `fake` joins endpoints of one process, and does what
 * the environment says:
 *
 *   FAKE_FABRIC=nomem         registers no memory
 *   FAKE_FABRIC=getinfo       never returns from fi_getinfo
 *   FAKE_FABRIC=domain        never returns from fi_domain
 *   FAKE_FABRIC=signals       takes SIGTERM when it is loaded, and SIGINT when it is asked first
 *   FAKE_FABRIC_WRITES=n      takes further writes after the first n, and does nothing with them
 *   FAKE_FABRIC_FAILS=n       reports an error of every n-th write
 *   FAKE_FABRIC_LOSES=n       completes the n-th record of a stream without placing it
 *   FAKE_FABRIC_WAIT=fd       gives completion queues a descriptor to wait for
 *
 * Its device `mrN` wants memory registered by the modes N (FI_MR_*), and refuses what breaks their
 * rules; any other has addresses as they are (FI_MR_VIRT_ADDR). An object that is closed before
 * those that are made from it ends the process.
 *
 * MAJOR and MINOR are its version. With FIRST it has the functions of earlier releases beside
 * those that are used, and with LATEST those of a later one, as their default: they end the
 * process.
 */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interface.h"

#define PAGE 4096
#define REGIONS 64
#define ENTRIES 1024
#define ENDPOINTS 4096

struct mr {
	struct fid fid;
	void *mem_desc;
	uint64_t key;
	struct domain *domain;
	uint64_t start, len, access;
	/* What becomes the key when it is enabled. */
	uint64_t later_key;
	/* To which it is bound. */
	struct ep *ep;
	int enabled;
};

struct cq {
	struct fid fid;
	const void *ops;
	struct entry entries[ENTRIES];
	size_t first, count;
	int error;
	/* Readable when there is something to read; -1 if it has none. */
	int fd;
	struct domain *domain;
};

struct domain {
	struct fid fid;
	const void *ops;
	const void *mr;
	struct mr *regions[REGIONS];
	/* Objects that were made from it and are open. */
	int open;
	int mode;
};

struct av {
	struct fid fid;
	const void *ops;
	struct domain *domain;
};

struct ep {
	struct fid fid;
	const void *ops, *cm, *msg, *rma;
	struct domain *domain;
	struct cq *cq;
	uint64_t number;
	/* Regions that are bound to it. */
	int regions;
};

struct fabric {
	struct fid fid;
	const void *ops;
	uint32_t api_version;
};

enum { OTHER, A_CQ, AN_EP };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep *endpoints[ENDPOINTS];
static uint64_t next_endpoint = 1;
static long writes, records;

static int is(const char *mode)
{
	const char *wanted = getenv("FAKE_FABRIC");
	return wanted && !strcmp(wanted, mode);
}

static void hang_if(const char *mode)
{
	while (is(mode))
		pause();
}

static void end(int number)
{
	(void)number;
	_exit(1);
}

__attribute__((constructor)) static void loaded(void)
{
	if (is("signals"))
		signal(SIGTERM, end);
}

static int bind_nothing(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return 0;
}

static int control_nothing(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)command, (void)arg;
	return 0;
}

static int close_plain(struct fid *fid)
{
	free(fid);
	return 0;
}

/* Counts an object that a domain has more, or fewer. */
static void made(struct domain *domain, int objects)
{
	pthread_mutex_lock(&lock);
	domain->open += objects;
	pthread_mutex_unlock(&lock);
}

static void must(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "the library is used against its rules: %s\n", what);
	abort();
}

static const struct fi_ops plain = { sizeof plain, close_plain, bind_nothing, control_nothing };

/* Regions of memory. */

static int close_mr(struct fid *fid)
{
	struct mr *mr = (struct mr *)fid;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < REGIONS; i++)
		if (mr->domain->regions[i] == mr)
			mr->domain->regions[i] = NULL;
	if (mr->ep)
		mr->ep->regions--;
	mr->domain->open--;
	pthread_mutex_unlock(&lock);
	free(mr);
	return 0;
}

static int mr_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct mr *mr = (struct mr *)fid;
	struct ep *ep = (struct ep *)other;
	if (!(mr->domain->mode & FI_MR_ENDPOINT) || other->fclass != AN_EP || flags || mr->ep
	    || ep->domain != mr->domain)
		return -EINVAL;
	mr->ep = ep;
	ep->regions++;
	return 0;
}

static void enable(struct mr *mr)
{
	mr->key = mr->later_key;
	mr->mem_desc = mr;
	mr->enabled = 1;
}

static int mr_control(struct fid *fid, int command, void *arg)
{
	struct mr *mr = (struct mr *)fid;
	(void)arg;
	if (command != FI_ENABLE || !mr->ep)
		return -EINVAL;
	enable(mr);
	return 0;
}

static const struct fi_ops mr_fid = { sizeof mr_fid, close_mr, mr_bind, mr_control };

/* Whether each page has memory. */
static int is_backed(const char *start, size_t len)
{
	for (size_t at = 0; at < len; at += PAGE) {
		unsigned char resident = 0;
		void *page = (void *)(((uintptr_t)start + at) & ~(uintptr_t)(PAGE - 1));
		if (mincore(page, PAGE, &resident) || !(resident & 1))
			return 0;
	}
	return 1;
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
		  uint64_t key, uint64_t flags, struct mr **out, void *context)
{
	struct domain *domain = (struct domain *)fid;
	static uint64_t keys = 1000;
	(void)offset, (void)flags, (void)context;
	if (is("nomem"))
		return -ENOMEM;
	if (domain->mode & FI_MR_ALLOCATED && !is_backed(buf, len))
		return -EFAULT;
	struct mr *mr = calloc(1, sizeof *mr);
	*mr = (struct mr){ .fid.ops = &mr_fid, .key = FI_KEY_NOTAVAIL, .domain = domain,
			   .start = (uintptr_t)buf, .len = len, .access = access };
	int code = -ENOSPC;
	pthread_mutex_lock(&lock);
	mr->later_key = domain->mode & FI_MR_PROV_KEY ? keys++ : key;
	for (int i = 0; i < REGIONS; i++)
		if (domain->regions[i] && domain->regions[i]->later_key == mr->later_key)
			code = -FI_ENOKEY;
	for (int i = 0; i < REGIONS && code == -ENOSPC; i++)
		if (!domain->regions[i]) {
			domain->regions[i] = mr;
			domain->open++;
			code = 0;
		}
	pthread_mutex_unlock(&lock);
	if (code)
		free(mr);
	else if (!(domain->mode & FI_MR_ENDPOINT))
		enable(mr);
	*out = code ? NULL : mr;
	return code;
}

static const struct {
	size_t size;
	void *reg;
} mr_ops = { sizeof mr_ops, mr_reg };

/* Completions. */

static void signal_cq(struct cq *cq)
{
	if (cq->fd >= 0)
		eventfd_write(cq->fd, 1);
}

static void push(struct cq *cq, struct entry entry)
{
	if (cq->count == ENTRIES)
		abort();
	cq->entries[(cq->first + cq->count++) % ENTRIES] = entry;
	signal_cq(cq);
}

static void fail(struct cq *cq, int error)
{
	cq->error = error;
	signal_cq(cq);
}

static ssize_t cq_read(struct cq *cq, struct entry *out, size_t count)
{
	size_t n = 0;
	pthread_mutex_lock(&lock);
	for (; n < count && cq->count; n++, cq->count--) {
		out[n] = cq->entries[cq->first];
		cq->first = (cq->first + 1) % ENTRIES;
	}
	ssize_t none = cq->error ? -FI_EAVAIL : -EAGAIN;
	pthread_mutex_unlock(&lock);
	return n ? (ssize_t)n : none;
}

static ssize_t cq_readerr(struct cq *cq, struct err_entry *out, uint64_t flags)
{
	(void)flags;
	out->err = cq->error;
	return 1;
}

static const struct {
	size_t size;
	void *read, *readfrom, *readerr;
} cq_ops = { sizeof cq_ops, cq_read, NULL, cq_readerr };

static int cq_close(struct fid *fid)
{
	struct cq *cq = (struct cq *)fid;
	if (cq->fd >= 0)
		close(cq->fd);
	made(cq->domain, -1);
	free(cq);
	return 0;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	if (command != FI_GETWAIT)
		return -ENOSYS;
	*(int *)arg = ((struct cq *)fid)->fd;
	return 0;
}

static const struct fi_ops cq_fid = { sizeof cq_fid, cq_close, bind_nothing, cq_control };

/* Takes the signals back; whether a queue is empty, so that waiting for more makes sense. */
static int trywait(struct fabric *fabric, struct fid **queues, int count)
{
	int code = 0;
	(void)fabric;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < count; i++) {
		struct cq *cq = (struct cq *)queues[i];
		eventfd_t signals;
		eventfd_read(cq->fd, &signals);
		if (cq->count || cq->error)
			code = -EAGAIN;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

static int cq_open(struct domain *domain, const int *attr, struct cq **out, void *context)
{
	(void)context;
	/* struct fi_cq_attr: size and flags (8 bytes each), format, wait_obj. */
	const char *wait = getenv("FAKE_FABRIC_WAIT");
	int has_fd = wait && !strcmp(wait, "fd");
	if (attr[5] == FI_WAIT_FD && !has_fd)
		return -ENOSYS;
	struct cq *cq = calloc(1, sizeof *cq);
	cq->fid = (struct fid){ A_CQ, NULL, &cq_fid };
	cq->fd = has_fd ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
	cq->ops = &cq_ops;
	cq->domain = domain;
	made(domain, 1);
	*out = cq;
	return 0;
}

/* Addresses: the number of an endpoint. */

static int av_insert(struct av *av, const void *name, size_t count, uint64_t *out, uint64_t flags,
		     void *context)
{
	(void)av, (void)count, (void)flags, (void)context;
	memcpy(out, name, sizeof *out);
	return 1;
}

static const struct {
	size_t size;
	void *insert;
} av_ops = { sizeof av_ops, av_insert };

static int av_close(struct fid *fid)
{
	made(((struct av *)fid)->domain, -1);
	free(fid);
	return 0;
}

static const struct fi_ops av_fid = { sizeof av_fid, av_close, bind_nothing, control_nothing };

static int av_open(struct domain *domain, void *attr, struct av **out, void *context)
{
	(void)attr, (void)context;
	struct av *av = calloc(1, sizeof *av);
	av->fid.ops = &av_fid;
	av->ops = &av_ops;
	av->domain = domain;
	made(domain, 1);
	*out = av;
	return 0;
}

/* Endpoints. */

static void place(struct ep *ep, const struct msg_rma *msg)
{
	struct ep *peer = msg->addr < ENDPOINTS ? endpoints[msg->addr] : NULL;
	const struct rma_iov *to = msg->rma_iov;
	for (int i = 0; peer && i < REGIONS; i++) {
		struct mr *mr = peer->domain->regions[i];
		if (!mr || !mr->enabled || mr->key != to->key || !(mr->access & FI_REMOTE_WRITE))
			continue;
		if (mr->domain->mode & FI_MR_ENDPOINT && mr->ep != peer)
			continue;
		uint64_t first = mr->domain->mode & FI_MR_VIRT_ADDR ? mr->start : 0;
		if (to->addr < first || to->len > mr->len || to->addr - first > mr->len - to->len)
			continue;
		char *at = (char *)(uintptr_t)(mr->start + (to->addr - first));
		for (size_t n = 0; n < msg->iov_count; n++) {
			memcpy(at, msg->iov[n].iov_base, msg->iov[n].iov_len);
			at += msg->iov[n].iov_len;
		}
		push(peer->cq, (struct entry){ .flags = FI_REMOTE_CQ_DATA, .data = msg->data });
		push(ep->cq, (struct entry){ .op_context = msg->context });
		return;
	}
	fail(ep->cq, EACCES);
}

/* Whether bytes may be written from, by a descriptor, which only FI_MR_LOCAL needs. */
static int is_source(struct ep *ep, const struct iovec *iov, const struct mr *mr)
{
	uint64_t start = (uintptr_t)iov->iov_base, len = iov->iov_len;
	if (!(ep->domain->mode & FI_MR_LOCAL))
		return 1;
	for (int i = 0; mr && i < REGIONS; i++)
		if (ep->domain->regions[i] == mr)
			return mr->enabled && mr->access & FI_WRITE && start >= mr->start
			       && len <= mr->len && start - mr->start <= mr->len - len;
	return 0;
}

static ssize_t writemsg(struct ep *ep, const struct msg_rma *msg, uint64_t flags)
{
	const char *most = getenv("FAKE_FABRIC_WRITES"), *fails = getenv("FAKE_FABRIC_FAILS");
	const char *loses = getenv("FAKE_FABRIC_LOSES");
	(void)flags;
	pthread_mutex_lock(&lock);
	for (size_t n = 0; n < msg->iov_count; n++)
		must(is_source(ep, &msg->iov[n], msg->desc[n]), "a write from elsewhere");
	writes++;
	/* The two highest bits of an immediate are 0 for records. A lost greeting is noticed later,
	 * and credits may never be missed. */
	const int is_record = !(msg->data >> 30);
	records += is_record;
	if (fails && writes % atol(fails) == 0)
		fail(ep->cq, EIO);
	else if (loses && is_record && records == atol(loses))
		push(ep->cq, (struct entry){ .op_context = msg->context });
	else if (!most || writes <= atol(most))
		place(ep, msg);
	pthread_mutex_unlock(&lock);
	return 0;
}

static ssize_t writedata(struct ep *ep, const void *buf, size_t len, void *desc, uint64_t data,
			 uint64_t dest, uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = { (void *)buf, len };
	struct rma_iov to = { addr, len, key };
	struct msg_rma msg = { &iov, &desc, 1, dest, &to, 1, context, data };
	return writemsg(ep, &msg, 0);
}

static const struct {
	size_t size;
	void *read, *readv, *readmsg, *write, *writev, *writemsg, *inject, *writedata;
} rma_ops = { sizeof rma_ops, NULL, NULL, NULL, NULL, NULL, writemsg, NULL, writedata };

static int getname(struct fid *fid, void *name, size_t *len)
{
	struct ep *ep = (struct ep *)fid;
	memcpy(name, &ep->number, sizeof ep->number);
	*len = sizeof ep->number;
	return 0;
}

static const struct {
	size_t size;
	void *setname, *getname;
} cm_ops = { sizeof cm_ops, NULL, getname };

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)flags;
	if (other->fclass == A_CQ)
		((struct ep *)fid)->cq = (struct cq *)other;
	return 0;
}

static int ep_close(struct fid *fid)
{
	struct ep *ep = (struct ep *)fid;
	pthread_mutex_lock(&lock);
	must(!ep->regions, "an endpoint is closed before regions that are bound to it");
	ep->domain->open--;
	endpoints[ep->number] = NULL;
	pthread_mutex_unlock(&lock);
	free(ep);
	return 0;
}

static const struct fi_ops ep_fid = { sizeof ep_fid, ep_close, ep_bind, control_nothing };

static int ep_open(struct domain *domain, struct fi_info *info, struct ep **out, void *context)
{
	(void)info, (void)context;
	struct ep *ep = calloc(1, sizeof *ep);
	ep->fid = (struct fid){ AN_EP, NULL, &ep_fid };
	ep->cm = &cm_ops;
	ep->rma = &rma_ops;
	ep->domain = domain;
	pthread_mutex_lock(&lock);
	ep->number = next_endpoint++;
	if (ep->number >= ENDPOINTS)
		abort();
	endpoints[ep->number] = ep;
	domain->open++;
	pthread_mutex_unlock(&lock);
	*out = ep;
	return 0;
}

static int domain_close(struct fid *fid)
{
	must(!((struct domain *)fid)->open, "a domain is closed before what is made from it");
	free(fid);
	return 0;
}

static const struct fi_ops domain_fid = { sizeof domain_fid, domain_close, bind_nothing,
					  control_nothing };

static const struct {
	size_t size;
	void *av_open, *cq_open, *endpoint;
} domain_ops = { sizeof domain_ops, av_open, cq_open, ep_open };

static int domain_open(struct fabric *fabric, struct fi_info *info, struct domain **out,
		       void *context)
{
	(void)fabric, (void)context;
	hang_if("domain");
	struct domain *domain = calloc(1, sizeof *domain);
	domain->fid.ops = &domain_fid;
	domain->mode = info->domain_attr->mr_mode;
	domain->ops = &domain_ops;
	domain->mr = &mr_ops;
	*out = domain;
	return 0;
}

static const struct {
	size_t size;
	void *domain, *passive_ep, *eq_open, *wait_open, *trywait;
} fabric_ops = { sizeof fabric_ops, domain_open, NULL, NULL, NULL, trywait };

/* What the library exports. */

#define SYMBOL(symbol, function, version) __asm__(".symver " symbol ", " #function version)

/* A function of another version, with other structures. */
#define WRONG(function, number, version) \
	void wrong_##function##_##number(void); \
	void wrong_##function##_##number(void) \
	{ \
		must(0, #function version); \
	} \
	SYMBOL("wrong_" #function "_" #number, function, version)

#ifdef FIRST
WRONG(fi_getinfo, 0, "@FABRIC_1.0");
WRONG(fi_getinfo, 1, "@FABRIC_1.1");
WRONG(fi_getinfo, 2, "@FABRIC_1.2");
WRONG(fi_freeinfo, 0, "@FABRIC_1.0");
WRONG(fi_freeinfo, 1, "@FABRIC_1.1");
WRONG(fi_freeinfo, 2, "@FABRIC_1.2");
WRONG(fi_dupinfo, 0, "@FABRIC_1.0");
WRONG(fi_dupinfo, 1, "@FABRIC_1.1");
WRONG(fi_dupinfo, 2, "@FABRIC_1.2");
WRONG(fi_fabric, 0, "@FABRIC_1.0");
#endif

#ifdef LATEST
WRONG(fi_getinfo, 7, "@@FABRIC_1.7");
WRONG(fi_freeinfo, 7, "@@FABRIC_1.7");
WRONG(fi_dupinfo, 7, "@@FABRIC_1.7");
SYMBOL("right_getinfo", fi_getinfo, "@FABRIC_1.3");
SYMBOL("right_freeinfo", fi_freeinfo, "@FABRIC_1.3");
SYMBOL("right_dupinfo", fi_dupinfo, "@FABRIC_1.3");
#define fi_getinfo right_getinfo
#define fi_freeinfo right_freeinfo
#define fi_dupinfo right_dupinfo
#endif

uint32_t fi_version(void)
{
	return MAJOR << 16 | MINOR;
}

const char *fi_strerror(int code)
{
	return strerror(code);
}

int fi_fabric(struct fi_fabric_attr *attr, struct fabric **out, void *context)
{
	(void)attr, (void)context;
	struct fabric *fabric = calloc(1, sizeof *fabric);
	fabric->fid.ops = &plain;
	fabric->ops = &fabric_ops;
	*out = fabric;
	return 0;
}

static char *copy(const char *text)
{
	return text ? strdup(text) : NULL;
}

struct fi_info *fi_dupinfo(const struct fi_info *from)
{
	struct fi_info *info = calloc(1, sizeof *info);
	info->tx_attr = calloc(1, sizeof *info->tx_attr);
	info->rx_attr = calloc(1, sizeof *info->rx_attr);
	info->ep_attr = calloc(1, sizeof *info->ep_attr);
	info->domain_attr = calloc(1, sizeof *info->domain_attr);
	info->fabric_attr = calloc(1, sizeof *info->fabric_attr);
	if (from) {
		info->caps = from->caps;
		info->mode = from->mode;
		info->addr_format = from->addr_format;
		*info->ep_attr = *from->ep_attr;
		*info->domain_attr = *from->domain_attr;
		*info->fabric_attr = *from->fabric_attr;
		info->domain_attr->name = copy(from->domain_attr->name);
		info->fabric_attr->name = copy(from->fabric_attr->name);
		info->fabric_attr->prov_name = copy(from->fabric_attr->prov_name);
	}
	return info;
}

void fi_freeinfo(struct fi_info *info)
{
	while (info) {
		struct fi_info *next = info->next;
		free(info->domain_attr->name);
		free(info->fabric_attr->name);
		free(info->fabric_attr->prov_name);
		free(info->tx_attr);
		free(info->rx_attr);
		free(info->ep_attr);
		free(info->domain_attr);
		free(info->fabric_attr);
		free(info);
		info = next;
	}
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **out)
{
	(void)node, (void)service, (void)flags;
	hang_if("getinfo");
	if (is("signals"))
		signal(SIGINT, end);
	if (version > fi_version())
		return -ENOSYS;
	const char *device = hints->domain_attr->name;
	int mode = FI_MR_VIRT_ADDR;
	if (device && !strncmp(device, "mr", 2))
		mode = atoi(device + 2);
	else
		device = "fake0";
	if (mode & ~hints->domain_attr->mr_mode)
		return -ENODATA;
	struct fi_info *info = fi_dupinfo(hints);
	free(info->domain_attr->name);
	info->domain_attr->name = strdup(device);
	info->fabric_attr->name = strdup("fake");
	info->fabric_attr->prov_name = strdup("fake");
	info->domain_attr->mr_mode = mode;
	info->domain_attr->mr_key_size = 8;
	info->ep_attr->max_msg_size = 1 << 20;
	info->ep_attr->protocol = 77;
	info->ep_attr->protocol_version = 1;
	*out = info;
	return 0;
}
