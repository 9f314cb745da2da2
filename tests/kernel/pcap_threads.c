// Uses one capture in several threads: pcap_threads INTERFACE FILTER OTHER_FILTER MODE [CALL]
//
// Frames have a number behind the Ethernet header; the one numbered LAST ends the reading. Prints one JSON object.
// pthread_timedjoin_np and pthread_tryjoin_np are glibc's.
#define _GNU_SOURCE
#include <errno.h>
#include <pcap.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LAST 0xffffffffu
#define TIMES 2000
#define CHANGES 30
#define HANG_S 60

static pcap_t *pcap;
static const char *interface, *filter, *other_filter, *call;
static atomic_ulong delivered, breaks, calls;
static atomic_int is_last, reader_id;

static void fail(const char *what) {
    printf("{\"failed\": \"%s: %s\"}\n", what, pcap_geterr(pcap));
    fflush(stdout);
    _exit(1);
}

static void set_filter(const char *expression) {
    struct bpf_program program;
    if (pcap_compile(pcap, &program, expression, 1, 0) < 0) fail("pcap_compile");
    if (pcap_setfilter(pcap, &program) < 0) fail("pcap_setfilter");
    pcap_freecode(&program);
}

static void open_capture(void) {
    char error[PCAP_ERRBUF_SIZE];
    pcap = pcap_create(interface, error);
    if (!pcap) exit(2);
    pcap_set_timeout(pcap, 50);
    if (pcap_activate(pcap) < 0) fail("pcap_activate");
    set_filter(filter);
}

static void count_stats(void) {
    static atomic_uint greatest;
    struct pcap_stat stats;
    // What another thread was told earlier must not be taken back, except frames of our own.
    unsigned before = atomic_load(&greatest);
    if (pcap_stats(pcap, &stats) < 0) fail("pcap_stats");
    if (stats.ps_recv + 2 * TIMES < before) fail("pcap_stats counts back");
    while (before < stats.ps_recv && !atomic_compare_exchange_weak(&greatest, &before, stats.ps_recv)) {}
    atomic_fetch_add(&calls, 1);
}

static void take(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes) {
    unsigned number = (unsigned)bytes[14] << 24 | bytes[15] << 16 | bytes[16] << 8 | bytes[17];
    // A filter that lets more through may have been set.
    if (bytes[12] != 0x88 || bytes[13] != 0xb5) return;
    if (header->caplen < 18) fail("a packet is cut");
    if (number == LAST) {
        atomic_store(&is_last, 1);
        pcap_breakloop(pcap);
        return;
    }
    unsigned long count = atomic_fetch_add(&delivered, 1);
    // The capture may be used in its own callback.
    if (count % 50 == 0) count_stats();
    if (user && count == 100) set_filter(filter);
}

static void *read_all(void *changes) {
    while (!atomic_load(&is_last)) {
        int status = pcap_loop(pcap, -1, take, changes);
        if (status == PCAP_ERROR_BREAK) atomic_fetch_add(&breaks, 1);
        else fail("pcap_loop");
    }
    return NULL;
}

static void *stats(void *unused) {
    for (int time = 0; time < TIMES; time++) count_stats();
    return unused;
}

static void *inject(void *unused) {
    u_char frame[60] = {255, 255, 255, 255, 255, 255, 2, 0x70, 0x73, 0, 0, 1, 0x88, 0xb5};
    for (int time = 0; time < TIMES; time++) {
        // A cable may be full for a moment.
        if (time % 2 ? pcap_inject(pcap, frame, sizeof frame) < 0 : pcap_sendpacket(pcap, frame, sizeof frame) < 0)
            if (!strstr(pcap_geterr(pcap), "buffer space")) fail("pcap_inject");
        atomic_fetch_add(&calls, 1);
    }
    return unused;
}

static void *break_loop(void *unused) {
    for (int time = 0; time < TIMES; time++) {
        pcap_breakloop(pcap);
        if (pcap_getnonblock(pcap, NULL) != 0 || pcap_snapshot(pcap) < 60 || pcap_datalink(pcap) != DLT_EN10MB)
            fail("properties");
        atomic_fetch_add(&calls, 1);
        sched_yield();
    }
    return unused;
}

static void *change_filter(void *unused) {
    for (int time = 0; time < CHANGES; time++) {
        set_filter(time % 2 ? filter : other_filter);
        atomic_fetch_add(&calls, 1);
    }
    return unused;
}

static void join(pthread_t thread, const char *what, void **result) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HANG_S;
    if (pthread_timedjoin_np(thread, result, &until) != 0) {
        printf("{\"failed\": \"%s does not end\"}\n", what);
        fflush(stdout);
        _exit(1);
    }
}

static void use_in_threads(int is_changing) {
    void *(*others[])(void *) = {stats, stats, inject, inject, break_loop, change_filter};
    const int count = is_changing ? 6 : 5;
    pthread_t reader, threads[6];
    open_capture();
    fprintf(stderr, "ready\n");
    pthread_create(&reader, NULL, read_all, is_changing ? pcap : NULL);
    // On a busy machine the others could be done before the first frame is sent.
    while (!atomic_load(&delivered)) sched_yield();
    for (int number = 0; number < count; number++) pthread_create(&threads[number], NULL, others[number], NULL);
    for (int number = 0; number < count; number++) join(threads[number], "a thread", NULL);
    fprintf(stderr, "done\n");
    join(reader, "the reader", NULL);
    struct pcap_stat stats;
    if (pcap_stats(pcap, &stats) < 0) fail("pcap_stats");
    printf("{\"delivered\": %lu, \"received\": %u, \"dropped\": %u, \"breaks\": %lu, \"calls\": %lu}\n", delivered,
           stats.ps_recv, stats.ps_drop, breaks, calls);
    pcap_close(pcap);
}

static atomic_int may_end;

static void count(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes) {
    (void)header, (void)bytes;
    atomic_fetch_add(&delivered, 1);
    if (user && !strcmp((char *)user, "callback")) sleep(1000);
    if (user && !strcmp((char *)user, "exit")) pthread_exit(PTHREAD_CANCELED);
    if (atomic_load(&may_end)) pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
}

static void *read_for_ever(void *mode) {
    struct pcap_pkthdr *header, one;
    const u_char *bytes;
    if (!strcmp(mode, "disabled")) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    atomic_store(&reader_id, (int)syscall(SYS_gettid));
    for (;;) {
        if (!strcmp(call, "loop")) {
            if (pcap_loop(pcap, -1, count, mode) < 0) fail("pcap_loop");
        } else if (!strcmp(call, "dispatch")) {
            if (pcap_dispatch(pcap, -1, count, mode) < 0) fail("pcap_dispatch");
        } else if (!strcmp(call, "next_ex")) {
            int status = pcap_next_ex(pcap, &header, &bytes);
            if (status < 0) fail("pcap_next_ex");
            if (status == 1) count(mode, header, bytes);
        } else if (pcap_next(pcap, &one)) {
            count(mode, &one, NULL);
        }
    }
    return NULL;
}

// Whether a thread waits in a system call.
static int is_asleep(int id) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    FILE *file = fopen(path, "r");
    const char *read = file ? fgets(line, sizeof line, file) : NULL;
    if (file) fclose(file);
    const char *behind_name = read ? strrchr(line, ')') : NULL;
    return behind_name && behind_name[2] == 'S';
}

static void wait_for(unsigned long count) {
    while (atomic_load(&delivered) < count) sched_yield();
}

static void cancel(char *mode) {
    pthread_t reader;
    void *result = NULL;
    open_capture();
    fprintf(stderr, "ready\n");
    pthread_create(&reader, NULL, read_for_ever, mode);
    if (!strcmp(mode, "idle")) {
        while (!atomic_load(&reader_id) || !is_asleep(atomic_load(&reader_id))) sched_yield();
    } else {
        wait_for(strcmp(mode, "exit") && strcmp(mode, "callback") ? 5 : 1);
    }
    if (strcmp(mode, "exit")) pthread_cancel(reader);
    if (!strcmp(mode, "disabled")) {
        wait_for(atomic_load(&delivered) + 20);
        if (pthread_tryjoin_np(reader, &result) != EBUSY) fail("it ended");
        atomic_store(&may_end, 1);
    }
    join(reader, "a cancelled thread", &result);
    struct pcap_stat stats;
    if (pcap_stats(pcap, &stats) < 0) fail("pcap_stats");
    const unsigned long read = atomic_load(&delivered);
    pcap_close(pcap);
    // What the thread left must not be in the way of another capture.
    atomic_store(&is_last, 0);
    open_capture();
    fprintf(stderr, "again\n");
    pthread_create(&reader, NULL, read_all, NULL);
    join(reader, "another reader", NULL);
    pcap_close(pcap);
    printf("{\"is_cancelled\": %s, \"received\": %s}\n", result == PTHREAD_CANCELED ? "true" : "false",
           stats.ps_recv >= read ? "true" : "false");
}

int main(int count_of_words, char **words) {
    if (count_of_words < 5) return 2;
    interface = words[1], filter = words[2], other_filter = words[3];
    call = count_of_words > 5 ? words[5] : "loop";
    if (!strcmp(words[4], "stats")) use_in_threads(0);
    else if (!strcmp(words[4], "filters")) use_in_threads(1);
    else cancel(words[4]);
    return 0;
}
