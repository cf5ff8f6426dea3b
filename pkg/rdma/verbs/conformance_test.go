//go:build verbs

package verbs_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// devicesVariable lists the devices to test on: NAME=ADDRESS, separated by
// commas. test/verbs/run.sh sets it in its virtual machine.
const devicesVariable = "ZC_RELAY_VERBS_DEVICES"

// testDevices are the addresses of the devices to test on, by name.
func testDevices(t testing.TB) map[string]netip.Addr {
	t.Helper()
	list := os.Getenv(devicesVariable)
	if list == "" {
		t.Skipf("needs RDMA devices: run test/verbs/run.sh, or set %s", devicesVariable)
	}
	devices := map[string]netip.Addr{}
	for _, item := range strings.Split(list, ",") {
		name, address, _ := strings.Cut(item, "=")
		devices[name] = netip.MustParseAddr(address)
	}
	return devices
}

// missing is what the devices cannot do, by their transport.
var missing = map[string]map[rdmatest.Feature]string{
	"roce": {
		rdmatest.ReceiverNotReady:   "RoCE repeats the Send, and the receiver is not told of it",
		rdmatest.ExactPrivateData:   "InfiniBand's connection manager pads it with zeros",
		rdmatest.LengthStatus:       "rxe reports a too long message as IBV_WC_LOC_QP_OP_ERR",
		rdmatest.AnswersNeedPolling: "the device answers",
	},
	"iwarp": {
		rdmatest.OrderlyClose:       "siw fails a queue pair also when its peer closes in order, and gives no reason",
		rdmatest.RemoteReadRight:    "siw does not check the right to be read",
		rdmatest.AnswersNeedPolling: "the device answers",
	},
}

func TestProviderKeepsThePromisesOfTheSeam(t *testing.T) {
	for name, address := range testDevices(t) {
		t.Run(name, func(t *testing.T) {
			provider, err := verbs.New(verbs.Options{Device: name})
			if err != nil {
				t.Fatal(err)
			}
			device, err := provider.Open(address)
			if err != nil {
				t.Fatal(err)
			}
			transport := device.Capabilities().Transport
			if err := device.Close(); err != nil {
				t.Fatal(err)
			}
			rdmatest.Run(t, rdmatest.Config{Provider: provider, Address: address, Missing: missing[transport]})
		})
	}
}
