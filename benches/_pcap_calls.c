// Times calls of libpcap: _pcap_calls INTERFACE open COUNT [FILTER] | change COUNT PAUSE_MS FILTER OTHER | reply COUNT SENDER TARGET
//
// Prints one number of microseconds a line. `reply` sends ARP requests for the address TARGET (hexadecimal) and reads the
// replies in immediate mode.
#include <pcap.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void fail(pcap_t *pcap, const char *what) {
    fprintf(stderr, "%s: %s\n", what, pcap_geterr(pcap));
    exit(1);
}

static pcap_t *opened(const char *interface, int is_immediate) {
    char error[PCAP_ERRBUF_SIZE];
    pcap_t *pcap = pcap_create(interface, error);
    if (!pcap) exit(2);
    pcap_set_timeout(pcap, 100);
    pcap_set_immediate_mode(pcap, is_immediate);
    if (pcap_activate(pcap) < 0) fail(pcap, "pcap_activate");
    return pcap;
}

static struct bpf_program compiled(pcap_t *pcap, const char *expression) {
    struct bpf_program program;
    if (pcap_compile(pcap, &program, expression, 1, 0) < 0) fail(pcap, "pcap_compile");
    return program;
}

static void set(pcap_t *pcap, struct bpf_program *program) {
    if (pcap_setfilter(pcap, program) < 0) fail(pcap, "pcap_setfilter");
}

static void pause_ms(int duration_ms) {
    struct timespec duration = {duration_ms / 1000, duration_ms % 1000 * 1000000L};
    nanosleep(&duration, NULL);
}

static void reply(const char *interface, int count, const char *sender, const char *target) {
    uint32_t from = htonl(strtoul(sender, NULL, 16)), to = htonl(strtoul(target, NULL, 16));
    uint8_t request[60] = {255, 255, 255, 255, 255, 255, 2, 0x70, 0x73, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1};
    memcpy(request + 22, request + 6, 6);
    memcpy(request + 28, &from, 4);
    memcpy(request + 38, &to, 4);
    pcap_t *pcap = opened(interface, 1);
    struct bpf_program program = compiled(pcap, "arp[6:2] = 2");
    set(pcap, &program);
    pause_ms(500);
    for (int number = 0; number < count; number++) {
        struct pcap_pkthdr *header;
        const u_char *bytes;
        double began_us = now_us();
        if (pcap_sendpacket(pcap, request, sizeof request) < 0) fail(pcap, "pcap_sendpacket");
        while (pcap_next_ex(pcap, &header, &bytes) != 1)
            if (now_us() - began_us > 2e6) fail(pcap, "no reply");
        printf("%.1f\n", now_us() - began_us);
        pause_ms(5 + number % 7);
    }
}

int main(int words, char **word) {
    if (words < 4) return 2;
    const char *interface = word[1], *mode = word[2];
    int count = atoi(word[3]);
    if (!strcmp(mode, "reply") && words == 6) {
        reply(interface, count, word[4], word[5]);
    } else if (!strcmp(mode, "open")) {
        for (int number = 0; number < count; number++) {
            double began_us = now_us();
            pcap_t *pcap = opened(interface, 0);
            if (words > 4) {
                struct bpf_program program = compiled(pcap, word[4]);
                set(pcap, &program);
            }
            printf("%.1f\n", now_us() - began_us);
        }
    } else if (!strcmp(mode, "change") && words == 7) {
        pcap_t *pcap = opened(interface, 0);
        struct bpf_program program[2] = {compiled(pcap, word[5]), compiled(pcap, word[6])};
        for (int number = 0; number < count; number++) {
            double began_us = now_us();
            set(pcap, &program[number % 2]);
            printf("%.1f\n", now_us() - began_us);
            pause_ms(atoi(word[4]));
        }
    } else {
        return 2;
    }
    fflush(stdout);
    return 0;
}
