/* The time of day, moved by what stands in a file that all processes share; the monotonic clocks are left alone.
 *
 * DELTACI_CHAOS_CLOCK names the file: eight bytes, the nanoseconds to add. Without it nothing is moved. The kernel is
 * asked directly, so that nothing in here depends on what else is preloaded.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t zero = 0;
static const volatile int64_t *offset = &zero;

__attribute__((constructor)) static void look(void)
{
	const char *path = getenv("DELTACI_CHAOS_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *found = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
	if (found != MAP_FAILED)
		offset = found;
	close(file);
}

static int is_time_of_day(clockid_t which)
{
	return which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE || which == CLOCK_TAI;
}

static void move(struct timespec *at)
{
	int64_t all = (int64_t)at->tv_sec * SECOND + at->tv_nsec + *offset;
	at->tv_sec = all / SECOND;
	at->tv_nsec = all % SECOND;
}

int clock_gettime(clockid_t which, struct timespec *at)
{
	int failed = syscall(SYS_clock_gettime, which, at);
	if (!failed && is_time_of_day(which))
		move(at);
	return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	struct timespec now;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}

int timespec_get(struct timespec *at, int base)
{
	if (base != TIME_UTC)
		return 0;
	clock_gettime(CLOCK_REALTIME, at);
	return base;
}
