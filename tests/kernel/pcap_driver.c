// Calls libpcap as it is told: pcap_driver
//
// Each line of standard input is a call with its arguments; each is answered by one JSON object on a line of standard
// output. `use N` chooses one of several handles. A handle's packets are reported as [captured bytes, wire bytes,
// hash of the bytes, nanoseconds]. `read CALL BYTES` calls until a packet of that wire length has come.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pcap.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#define HANDLES 64
#define FRAME_BYTES_MAX 65536

static pcap_t *handles[HANDLES], *pcap;
static int used;
static char error[PCAP_ERRBUF_SIZE];

// What a `read` has found.
static unsigned last_wire_bytes;
static int is_last, packets, nanoseconds;

static void text(const char *name, const char *value) {
    printf(", \"%s\": \"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\') putchar('\\');
        if ((unsigned char)*value >= ' ') putchar(*value);
    }
    putchar('"');
}

static void number(const char *name, long long value) { printf(", \"%s\": %lld", name, value); }

// A call's value, and what libpcap says of an error.
static void returned(long long value) {
    number("returned", value);
    if (value < 0 && pcap) text("error", pcap_geterr(pcap));
}

static void take(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes) {
    uint64_t hash = 0xcbf29ce484222325;
    for (bpf_u_int32 at = 0; at < header->caplen; at++) hash = (hash ^ bytes[at]) * 0x100000001b3;
    long long fraction_ns = (long long)header->ts.tv_usec * (nanoseconds ? 1 : 1000);
    printf("%s[%u, %u, \"%016" PRIx64 "\", %lld]", packets++ ? ", " : "", header->caplen, header->len, hash,
           (long long)header->ts.tv_sec * 1000000000 + fraction_ns);
    // Of a reading that hangs, one sees how far it came.
    fflush(stdout);
    if (header->len == last_wire_bytes) {
        is_last = 1;
        if (user) pcap_breakloop(pcap);
    }
}

static void begin_packets(void) {
    packets = is_last = 0;
    nanoseconds = pcap_get_tstamp_precision(pcap) == PCAP_TSTAMP_PRECISION_NANO;
    printf(", \"packets\": [");
}

static void wait_readable(const char *how) {
    int fd = pcap_get_selectable_fd(pcap);
    // Some captures want to be read after a time, readable or not.
    const struct timeval *required = pcap_get_required_select_timeout(pcap);
    if (!strcmp(how, "select")) {
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(fd, &readable);
        struct timeval copy = required ? *required : (struct timeval){0};
        select(fd + 1, &readable, NULL, NULL, required ? &copy : NULL);
    } else {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        poll(&one, 1, required ? (int)(required->tv_sec * 1000 + required->tv_usec / 1000) : -1);
    }
}

static void read_until(const char *call, unsigned wire_bytes) {
    long long sum = 0;
    int value = 0;
    last_wire_bytes = wire_bytes;
    begin_packets();
    while (!is_last) {
        struct pcap_pkthdr *header, own;
        const u_char *bytes;
        if (!strcmp(call, "loop")) {
            value = pcap_loop(pcap, -1, take, (u_char *)pcap);
        } else if (!strcmp(call, "loops")) {
            value = pcap_loop(pcap, 1, take, NULL);
        } else if (!strcmp(call, "dispatch")) {
            value = pcap_dispatch(pcap, -1, take, NULL);
        } else if (!strcmp(call, "dispatch3")) {
            value = pcap_dispatch(pcap, 3, take, NULL);
            if (value > 3) break;
        } else if (!strcmp(call, "next_ex")) {
            value = pcap_next_ex(pcap, &header, &bytes);
            if (value == 1) take(NULL, header, bytes);
        } else if (!strcmp(call, "next")) {
            bytes = pcap_next(pcap, &own);
            value = bytes != NULL;
            if (bytes) take(NULL, &own, bytes);
        } else {
            wait_readable(call);
            value = pcap_dispatch(pcap, -1, take, NULL);
        }
        if (value < 0) break;
        sum += value;
    }
    printf("]");
    returned(value < 0 ? value : 0);
    number("counted", sum);
}

static void on_signal(int signal) { (void)signal; }
static void on_break(int signal) {
    (void)signal;
    pcap_breakloop(pcap);
}

// Interrupts a read from a timer: `signal` with a handler alone, `break` with one that breaks the loop.
static void interrupted(const char *kind, int times) {
    struct sigaction action = {.sa_handler = !strcmp(kind, "break") ? on_break : on_signal};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 20000}, {0, 20000}}, none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    begin_packets();
    int value = pcap_loop(pcap, times, take, NULL);
    setitimer(ITIMER_REAL, &none, NULL);
    printf("]");
    returned(value);
}

static void set_filter(int optimize, const char *expression) {
    struct bpf_program program;
    int value = pcap_compile(pcap, &program, expression, optimize, PCAP_NETMASK_UNKNOWN);
    number("compiled", value);
    if (value < 0) {
        returned(value);
        return;
    }
    returned(pcap_setfilter(pcap, &program));
    pcap_freecode(&program);
}

static void send_frame(int is_inject, const char *digits) {
    static unsigned char frame[FRAME_BYTES_MAX];
    size_t bytes = 0;
    for (; digits[2 * bytes] && bytes < FRAME_BYTES_MAX; bytes++) sscanf(digits + 2 * bytes, "%2hhx", &frame[bytes]);
    returned(is_inject ? pcap_inject(pcap, frame, bytes) : pcap_sendpacket(pcap, frame, (int)bytes));
}

static void lists(void) {
    int *values, count = pcap_list_datalinks(pcap, &values);
    number("datalinks", count);
    for (int at = 0; at < count; at++) number(at ? "another" : "first", values[at]);
    if (count > 0) pcap_free_datalinks(values);
    count = pcap_list_tstamp_types(pcap, &values);
    number("time stamp types", count);
    if (count > 0) pcap_free_tstamp_types(values);
    returned(0);
}

static void about(void) {
    number("datalink", pcap_datalink(pcap));
    number("datalink_ext", pcap_datalink_ext(pcap));
    number("snapshot", pcap_snapshot(pcap));
    number("is_swapped", pcap_is_swapped(pcap));
    number("major", pcap_major_version(pcap));
    number("minor", pcap_minor_version(pcap));
    number("precision", pcap_get_tstamp_precision(pcap));
    number("has a file", pcap_file(pcap) != NULL);
    number("has a descriptor", pcap_fileno(pcap) >= 0);
    number("can be polled", pcap_get_selectable_fd(pcap) >= 0);
    number("buffer of a file", pcap_bufsize(pcap) >= 0);
    returned(0);
}

// Calls that take a handle and a number.
static const struct {
    const char *name;
    int (*call)(pcap_t *, int);
} settings[] = {
    {"set_snaplen", pcap_set_snaplen},
    {"set_promisc", pcap_set_promisc},
    {"set_timeout", pcap_set_timeout},
    {"set_immediate_mode", pcap_set_immediate_mode},
    {"set_buffer_size", pcap_set_buffer_size},
    {"set_rfmon", pcap_set_rfmon},
    {"set_tstamp_type", pcap_set_tstamp_type},
    {"set_tstamp_precision", pcap_set_tstamp_precision},
    {"set_datalink", pcap_set_datalink},
};

static int is_setting(const char *name, int argument) {
    for (size_t at = 0; at < sizeof(settings) / sizeof(*settings); at++) {
        if (strcmp(name, settings[at].name)) continue;
        returned(settings[at].call(pcap, argument));
        return 1;
    }
    return 0;
}

static void call(char *line) {
    char *rest = line, *name = strsep(&rest, " ");
    long argument = rest ? strtol(rest, NULL, 0) : 0;
    text("call", name);
#define IS(word) (!strcmp(name, word))
    if (IS("use")) {
        used = (int)argument;
        pcap = handles[used];
        returned(0);
    } else if (IS("create") || IS("open_live")) {
        *error = 0;
        char *interface = strsep(&rest, " ");
        pcap = IS("create") ? pcap_create(interface, error)
                            : pcap_open_live(interface, (int)strtol(rest, &rest, 0), (int)strtol(rest, &rest, 0),
                                             (int)strtol(rest, &rest, 0), error);
        handles[used] = pcap;
        number("opened", pcap != NULL);
        text("error", error);
    } else if (IS("open_dead")) {
        pcap = handles[used] = pcap_open_dead((int)argument, 65535);
        returned(0);
    } else if (IS("open_offline")) {
        pcap = handles[used] = pcap_open_offline(rest, error);
        number("opened", pcap != NULL);
    } else if (!pcap) {
        number("no handle", 1);
    } else if (is_setting(name, (int)argument)) {
        // Done.
    } else if (IS("close")) {
        pcap_close(pcap);
        pcap = handles[used] = NULL;
        returned(0);
    } else if (IS("activate")) {
        returned(pcap_activate(pcap));
    } else if (IS("can_set_rfmon")) {
        returned(pcap_can_set_rfmon(pcap));
    } else if (IS("setdirection")) {
        returned(pcap_setdirection(pcap, (pcap_direction_t)argument));
    } else if (IS("setnonblock")) {
        returned(pcap_setnonblock(pcap, (int)argument, error));
    } else if (IS("getnonblock")) {
        returned(pcap_getnonblock(pcap, error));
    } else if (IS("filter")) {
        char *expression = strchr(rest, ' ');
        set_filter((int)argument, expression ? expression + 1 : "");
    } else if (IS("bad_filter")) {
        // Each instruction has its own fault: an unknown one, a jump behind the end, no end at all.
        struct bpf_insn faults[][1] = {{{0xffff, 0, 0, 0}}, {{0x05, 0, 0, 7}}, {{0x00, 0, 0, 1}}};
        struct bpf_program program = {argument < 3 ? 1 : 0, argument < 3 ? faults[argument] : NULL};
        returned(pcap_setfilter(pcap, &program));
    } else if (IS("stats")) {
        struct pcap_stat stats;
        int value = pcap_stats(pcap, &stats);
        if (!value) number("received", stats.ps_recv), number("dropped", stats.ps_drop), number("if", stats.ps_ifdrop);
        returned(value);
    } else if (IS("inject") || IS("sendpacket")) {
        send_frame(IS("inject"), rest ? rest : "");
    } else if (IS("breakloop")) {
        pcap_breakloop(pcap);
        returned(0);
    } else if (IS("read")) {
        char *how = strsep(&rest, " ");
        read_until(how, rest ? (unsigned)strtoul(rest, NULL, 0) : 0);
    } else if (IS("once")) {
        begin_packets();
        int value = 0;
        struct pcap_pkthdr *header, own;
        const u_char *bytes;
        if (!strcmp(rest, "dispatch")) {
            value = pcap_dispatch(pcap, -1, take, NULL);
        } else if (!strcmp(rest, "loop")) {
            value = pcap_loop(pcap, 1, take, NULL);
        } else if (!strcmp(rest, "next_ex")) {
            if ((value = pcap_next_ex(pcap, &header, &bytes)) == 1) take(NULL, header, bytes);
        } else if ((bytes = pcap_next(pcap, &own))) {
            take(NULL, &own, bytes);
        }
        printf("]");
        returned(value);
    } else if (IS("interrupted")) {
        char *kind = strsep(&rest, " ");
        interrupted(kind, rest ? atoi(rest) : 1);
    } else if (IS("about")) {
        about();
    } else if (IS("lists")) {
        lists();
    } else {
        number("unknown call", 1);
    }
}

int main(void) {
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        line[strcspn(line, "\n")] = 0;
        printf("{\"handle\": %d", used);
        call(line);
        printf("}\n");
        fflush(stdout);
    }
    for (int at = 0; at < HANDLES; at++)
        if (handles[at]) pcap_close(handles[at]);
    free(line);
    return 0;
}
